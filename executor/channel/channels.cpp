#include "executor/channel/channels.h"

#include <fmt/format.h>

#include <algorithm>
#include <stdexcept>

#include "costmodel/errors.h"
#include "executor/channel/channel_gloo.h"
#include "executor/channel/channel_local.h"
#include "executor/channel/channel_nccl.h"
#include "executor/channel/channel_ucx.h"

namespace stagecraft::channel {
namespace {

std::unique_ptr<Channel> make_gloo(const ChannelSetup& setup) {
  return make_gloo_channel(setup.launch, setup.deadline, setup.activity);
}

std::unique_ptr<Channel> make_ucx(const ChannelSetup& setup) {
  return make_ucx_channel(setup.launch, setup.deadline, setup.activity);
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
      {.name = "ucx",
       .help = "one process per rank, on CPUs, over shared memory or a network",
       .device = "cpu",
       .make_process = make_ucx,
       .why_missing = why_no_ucx},
      {.name = "gloo", .help = "one process per rank, on CPUs, over TCP", .device = "cpu", .make_process = make_gloo},
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
  if (kind == channels().end())
    throw InputError(ErrorKind::UnknownName, unknown_name("channel", name, channel_names()));
  return *kind;
}

void require(const ChannelKind& kind) {
  const std::string why = kind.why_missing ? kind.why_missing() : "";
  if (!why.empty()) throw DeviceError(ErrorKind::NotInBuild, fmt::format("no channel {}: {}", kind.name, why));
}

std::vector<const ChannelKind*> fitting_channels(const std::string& device, bool processes) {
  std::vector<const ChannelKind*> out;
  for (const ChannelKind& kind : channels()) {
    if ((kind.make_process != nullptr) == processes && (kind.device.empty() || kind.device == device))
      out.push_back(&kind);
  }
  if (out.empty()) throw std::invalid_argument("no channel connects ranks on device \"" + device + "\"");
  return out;
}

const ChannelKind& default_channel(const std::string& device, bool processes) {
  const std::vector<const ChannelKind*> fitting = fitting_channels(device, processes);
  for (const ChannelKind* kind : fitting) {
    if (!kind->why_missing || kind->why_missing().empty()) return *kind;
  }
  return *fitting.back();
}

std::string channel_versions() { return "Gloo (c10d), " + ucx_version(); }

}  // namespace stagecraft::channel
