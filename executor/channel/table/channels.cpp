#include "executor/channel/table/channels.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <stdexcept>

#include "costmodel/errors.h"
#include "executor/channel/channel_gloo.h"
#include "executor/channel/channel_local.h"
#include "executor/channel/nccl/channel_nccl.h"
#include "executor/channel/ucx/channel_ucx.h"

namespace stagecraft::channel {

const std::vector<ChannelKind>& channels() {
  static const std::vector<ChannelKind> table{local_channel(), ucx_channel(), gloo_channel(), nccl_channel()};
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

std::string channel_versions() {
  std::vector<std::string> out;
  for (const ChannelKind& kind : channels()) {
    if (kind.version) out.push_back(kind.version());
  }
  std::ranges::sort(out);
  return fmt::format("{}", fmt::join(out, ", "));
}

std::string channels_text() {
  std::vector<std::string> out;
  for (const ChannelKind& kind : channels()) out.push_back(fmt::format("{} ({})", kind.name, kind.help));
  return joined_words(out, "or");
}

}  // namespace stagecraft::channel
