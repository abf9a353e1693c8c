#pragma once

#include <c10/core/Device.h>

#include <chrono>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "executor/channel/activity.h"
#include "executor/channel/channel.h"
#include "executor/channel/nccl_program.h"
#include "executor/meeting/launch_info.h"

namespace stagecraft::channel {

/// What one process needs to connect its ranks over a channel.
struct ChannelSetup {
  meeting::LaunchInfo launch;
  std::chrono::milliseconds deadline{60000};       ///< of every wait
  std::shared_ptr<Activity> activity = nullptr;    ///< where waits are recorded, if given
  c10::Device device{c10::kCPU};                   ///< on which this rank computes
  bool share_gpu = false;                          ///< several ranks may compute on one GPU
  bool deterministic = false;                      ///< sum in the order of the members, see make_nccl_channel
  std::function<NcclProgram()> program = nullptr;  ///< what the run sends and reduces; for channels that prepare it
};

/// An entry of the table of channels, see table/channels.h. Either `make_threads` or `make_process` is set.
struct ChannelKind {
  std::string name;
  std::string help;
  std::string device;  ///< "cpu" or "cuda": the only device supported; empty: both
  /// One channel per rank, for threads of one process.
  std::function<std::vector<std::unique_ptr<Channel>>(int ranks, std::chrono::milliseconds deadline)> make_threads =
      nullptr;
  /// This process's channel. Call on every rank after `join`. Throws PeerError if not all ranks are connected before
  /// the deadline, DeviceError if the machine or the build lacks what the channel needs.
  std::function<std::unique_ptr<Channel>(const ChannelSetup&)> make_process = nullptr;
  /// Why this build or this machine does not have it; empty if it does. Unset: every build has it.
  std::function<std::string()> why_missing = nullptr;
  /// Which library of which version carries it, for --version: "UCX 1.13.1". Unset: none, or one that is among the
  /// versions of the device.
  std::function<std::string()> version = nullptr;
};

}  // namespace stagecraft::channel
