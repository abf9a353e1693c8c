#include "executor/launch/rank_start.h"

#include <fmt/format.h>

#include <iostream>
#include <stdexcept>

#include "costmodel/errors.h"
#include "executor/launch/rank_group.h"

namespace stagecraft::launch {
namespace {

std::string threads_text(const std::string& channel) {
  return fmt::format("channel {} runs all ranks as threads of one process", channel);
}

/// For a channel that the request names.
RankStart start_over(const channel::ChannelKind& kind, const StartRequest& request) {
  const auto for_processes = [&] { return channel::default_channel(request.device, true).name; };  // may load UCX
  if (!kind.device.empty() && kind.device != request.device) {
    throw std::invalid_argument(fmt::format("{} needs {}: use --device {}, or --channel {}", kind.name,
                                            kind.device == "cuda" ? "GPUs" : "CPUs", kind.device, for_processes()));
  }
  channel::require(kind);
  if (kind.make_threads) {
    if (request.starter.empty()) return {RankStart::How::Threads, kind.name};
    throw std::invalid_argument(
        fmt::format("{}; remove {}, or use --channel {}", threads_text(kind.name), request.starter, for_processes()));
  }
  if (request.launch) return {RankStart::How::Process, kind.name};
  if (request.starter.empty() && !request.starts_processes) {
    throw std::invalid_argument(
        fmt::format("{} needs one process per rank: add --spawn, or start with torchrun, srun or mpirun", kind.name));
  }
  return {RankStart::How::Spawn, kind.name};
}

}  // namespace

RankStart choose_start(const StartRequest& request) {
  if (!request.channel.empty()) return start_over(channel::channel_by_name(request.channel), request);
  if (request.launch) return {RankStart::How::Process, ""};
  if (!request.starter.empty()) return {RankStart::How::Spawn, ""};
  return {RankStart::How::Threads, channel::default_channel(request.device, false).name};
}

void check_rank_count(const RankStart& start, const std::optional<meeting::LaunchInfo>& launch, int ranks,
                      const std::string& needs) {
  const bool threads = start.how == RankStart::How::Threads;
  if (!launch || launch->ranks == (threads ? 1 : ranks)) return;
  throw InputError(
      ErrorKind::WrongRankCount,
      fmt::format("{}, {} started {}; {}", threads ? threads_text(start.channel) : needs, launch->launcher,
                  launch->ranks,
                  threads ? fmt::format("start one, or remove --channel {}", start.channel)
                          : fmt::format("start {}, or use --spawn to start them on this machine without {}", ranks,
                                        launch->launcher)));
}

void run_rank_process(const meeting::LaunchInfo& launch, std::chrono::milliseconds deadline, const RankWork& work) {
  run_as_process(launch, deadline, [&](Rendezvous& rendezvous, std::unique_ptr<channel::Channel>& channel) {
    agree(rendezvous, work.agreed);
    std::string name = work.channel;
    if (name.empty()) {
      const AgreedChannel agreed = agree_on_channel(rendezvous, work.device);
      name = agreed.name;
      if (launch.rank == 0 && !agreed.note.empty()) std::cerr << agreed.note + "\n";
    }
    channel::ChannelSetup setup;
    setup.launch = launch;
    setup.deadline = deadline;
    setup.activity = rendezvous.activity();
    if (work.prepare) work.prepare(rendezvous, name, setup);
    channel = channel::channel_by_name(name).make_process(setup);
    work.work(rendezvous, *channel);
  });
}

}  // namespace stagecraft::launch
