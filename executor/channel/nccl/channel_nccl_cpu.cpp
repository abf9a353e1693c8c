#include "executor/channel/nccl/channel_nccl.h"

#include "costmodel/errors.h"
#include "executor/meeting/launch_info.h"

namespace stagecraft::channel {

std::unique_ptr<Channel> make_nccl_channel(const meeting::LaunchInfo&, const NcclProgram&, std::unique_ptr<Channel>,
                                           c10::Device, std::chrono::milliseconds, const NcclOptions&) {
  throw DeviceError(ErrorKind::NotInBuild,
                    "this build has no channel nccl: configure with -DSTAGECRAFT_WITH_CUDA=ON, or use gloo");
}

void share_gpu(int) {}

}  // namespace stagecraft::channel
