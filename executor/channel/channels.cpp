#include "executor/channel/channels.h"

#include <algorithm>
#include <stdexcept>

#include "costmodel/errors.h"
#include "executor/channel/channel_gloo.h"
#include "executor/channel/channel_local.h"
#include "executor/channel/channel_nccl.h"

namespace stagecraft::channel {
namespace {

std::unique_ptr<Channel> make_gloo(const ChannelSetup& setup) {
  return make_gloo_channel(setup.launch, setup.deadline, setup.activity);
}

std::unique_ptr<Channel> make_nccl(const ChannelSetup& setup) {
  if (setup.share_gpu) share_gpu(setup.launch.rank);
  auto control = make_gloo(setup);
  return make_nccl_channel(setup.launch, setup.program(), std::move(control), setup.device, setup.deadline,
                           {.deterministic = setup.deterministic});
}

}  // namespace

const std::vector<ChannelKind>& channels() {
  static const std::vector<ChannelKind> table{
      {.name = "local", .help = "ranks are threads of one process", .device = "", .make_threads = make_local_channels},
      {.name = "gloo", .help = "one process per rank, on CPUs", .device = "cpu", .make_process = make_gloo},
      {.name = "nccl", .help = "one process per rank, on GPUs", .device = "cuda", .make_process = make_nccl},
  };
  return table;
}

std::vector<std::string> channel_names() {
  std::vector<std::string> out;
  for (const ChannelKind& kind : channels()) out.push_back(kind.name);
  return out;
}

const ChannelKind& channel_by_name(const std::string& name) {
  const auto kind = std::ranges::find(channels(), name, &ChannelKind::name);
  if (kind == channels().end()) throw std::invalid_argument(unknown_name("channel", name, channel_names()));
  return *kind;
}

const ChannelKind& default_channel(const std::string& device, bool processes) {
  const auto fits = [&](const ChannelKind& kind) {
    return (kind.make_process != nullptr) == processes && (kind.device.empty() || kind.device == device);
  };
  const auto kind = std::ranges::find_if(channels(), fits);
  if (kind == channels().end()) throw std::invalid_argument("no channel connects ranks on device \"" + device + "\"");
  return *kind;
}

}  // namespace stagecraft::channel
