#pragma once

#include <chrono>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "executor/channel/table/channels.h"
#include "executor/launch/rendezvous.h"
#include "executor/meeting/launch_info.h"

namespace stagecraft::launch {

/// What a command line and its environment say about how the ranks run.
struct StartRequest {
  std::string channel = {};       ///< empty: the best that all ranks have
  std::string device = "cpu";     ///< "cpu" or "cuda": on which the ranks compute
  std::string starter = {};       ///< the option that starts one process per rank, "--spawn"; empty: not given
  bool starts_processes = false;  ///< the command starts them without an option too, if the channel needs them
  std::optional<meeting::LaunchInfo> launch = {};  ///< this process's place, if a launcher started it
};

/// How the ranks run.
struct RankStart {
  enum class How {
    Threads,  ///< all as threads of this process
    Process,  ///< this process is one of them
    Spawn,    ///< this process starts one process per rank
  };
  How how = How::Threads;
  std::string channel;  ///< empty: the processes have yet to agree on one
};

/// Throws std::invalid_argument with a remedy if the channel does not exist or needs another device, if it connects
/// threads but `starter` was given, and if it connects processes that nobody starts; DeviceError as channel::require.
[[nodiscard]] RankStart choose_start(const StartRequest& request);

/// Throws InputError unless the launcher, if there is one, started as many processes as `start` needs: `ranks`, or one
/// for threads; the text names a way out. `needs` says where that number is from: "plan.json: the plan needs 3 ranks".
void check_rank_count(const RankStart& start, const std::optional<meeting::LaunchInfo>& launch, int ranks,
                      const std::string& needs);

/// What one rank of several processes does.
struct RankWork {
  std::string channel = {};              ///< empty: the first that all ranks have
  std::string device = "cpu";            ///< "cpu" or "cuda": on which the ranks compute
  std::vector<std::string> agreed = {};  ///< what must be the same on all ranks, see agree
  /// Called once the ranks have agreed, with the channel's name. Completes its set-up, whose deadline is the run's.
  std::function<void(Rendezvous&, const std::string& channel, channel::ChannelSetup&)> prepare = {};
  std::function<void(Rendezvous&, channel::Channel&)> work = {};
};

/// run_as_process for work over a channel: joins, agrees, connects, works and leaves. Rank 0 says on standard error why
/// the channel is not the best one. Throws as agree, agree_on_channel and the channel do, and what the work throws.
void run_rank_process(const meeting::LaunchInfo& launch, std::chrono::milliseconds deadline, const RankWork& work);

}  // namespace stagecraft::launch
