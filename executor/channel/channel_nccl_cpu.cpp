#include "executor/channel/channel_nccl.h"

#include "costmodel/errors.h"
#include "executor/meeting/launch_info.h"

namespace stagecraft {

std::unique_ptr<Channel> make_nccl_channel(const LaunchInfo&, NcclProgram, std::unique_ptr<Channel>, c10::Device,
                                           std::chrono::milliseconds, const NcclOptions&) {
  throw DeviceError("channel nccl is not in this build: configure with -DSTAGECRAFT_WITH_CUDA=ON, or take gloo");
}

void share_gpu(int) {}

}  // namespace stagecraft
