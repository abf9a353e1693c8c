#include "executor/channel/channel_gloo.h"
#include "executor/channel/nccl/channel_nccl.h"

namespace stagecraft::channel {
namespace {

/// Small messages and those without a GPU go over Gloo.
std::unique_ptr<Channel> make_nccl(const ChannelSetup& setup) {
  if (setup.share_gpu) share_gpu(setup.launch.rank);
  auto control = make_gloo_channel(setup.launch, setup.deadline, setup.activity);
  return make_nccl_channel(setup.launch, setup.program(), std::move(control), setup.device, setup.deadline,
                           {.deterministic = setup.deterministic});
}

}  // namespace

ChannelKind nccl_channel() {
  return {.name = "nccl", .help = "one process per rank, on GPUs", .device = "cuda", .make_process = make_nccl};
}

}  // namespace stagecraft::channel
