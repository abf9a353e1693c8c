#include "executor/channel/ucx/channel_ucx.h"

namespace stagecraft::channel {

ChannelKind ucx_channel() {
  return {.name = "ucx",
          .help = "one process per rank, on CPUs, over shared memory or a network",
          .device = "cpu",
          .make_process =
              [](const ChannelSetup& setup) { return make_ucx_channel(setup.launch, setup.deadline, setup.activity); },
          .why_missing = why_no_ucx,
          .version = ucx_version};
}

}  // namespace stagecraft::channel
