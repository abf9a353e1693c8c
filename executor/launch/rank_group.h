#pragma once

#include <chrono>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "executor/channel/channel.h"
#include "executor/channel/table/channels.h"
#include "executor/launch/rendezvous.h"
#include "executor/meeting/launch_info.h"

namespace stagecraft::launch {

/// Runs `body` once per channel, each in a separate thread, and returns when all have ended. Rethrows the first
/// exception, having aborted the channels of the others; to a missed deadline it adds one line per rank.
void run_as_threads(const std::vector<std::unique_ptr<channel::Channel>>& channels,
                    const std::function<void(channel::Channel&)>& body);

/// Joins the run of `launch` and runs `body`, which creates and sets the channel. If `body` returns, waits for the
/// other ranks at a barrier and leaves. If it throws, sends the others the reason while the channel is still open,
/// because a closed channel would look like the cause. Rethrows what `body` throws.
void run_as_process(const meeting::LaunchInfo& launch, std::chrono::milliseconds deadline,
                    const std::function<void(Rendezvous&, std::unique_ptr<channel::Channel>&)>& body);

/// Throws std::invalid_argument unless all ranks give the same `lines`, naming the first rank that differs from rank 0
/// and the first line of both that does. Every rank calls it.
void agree(Rendezvous& rendezvous, const std::vector<std::string>& lines);

/// The channel for a run in which no rank asks for a particular one. If it is not the best in the table, also the rank
/// that lacks the best.
struct AgreedChannel {
  std::string name;
  std::string note;  ///< a sentence, "" if there is nothing to say
};
/// The first of channel::fitting_channels for processes on `device` that all ranks have. Every rank calls it. Throws
/// std::invalid_argument if they have none in common.
[[nodiscard]] AgreedChannel agree_on_channel(Rendezvous& rendezvous, const std::string& device);

/// The machine of each rank, counted from 0 in the order of ranks. Ranks with different networks (containers, network
/// namespaces) count as on different machines. Every rank calls it.
[[nodiscard]] std::vector<int> machines_of(Rendezvous& rendezvous);

/// The clock that all processes of one machine share, in seconds; clocks of several machines start together at this
/// call. Every rank calls it.
[[nodiscard]] std::function<double()> common_clock(Rendezvous& rendezvous);

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
