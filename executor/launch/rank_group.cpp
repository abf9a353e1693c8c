#include "executor/launch/rank_group.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <exception>
#include <filesystem>
#include <fstream>
#include <iostream>
#include <mutex>
#include <sstream>
#include <stdexcept>
#include <thread>

#include "costmodel/errors.h"
#include "costmodel/index.h"
#include "costmodel/text/number.h"
#include "executor/channel/table/channels.h"
#include "executor/device/machine/program.h"
#include "executor/meeting/wire.h"

namespace stagecraft::launch {
namespace {

/// A missed deadline with one line per rank; any other error unchanged.
std::exception_ptr with_report(std::exception_ptr error,
                               const std::vector<std::unique_ptr<channel::Channel>>& channels) {
  try {
    std::rethrow_exception(error);
  } catch (const meeting::PeerError& e) {
    if (e.cause() != meeting::PeerError::Cause::Deadline) return error;
    std::string lines;
    for (std::size_t rank = 0; rank < channels.size(); ++rank)
      lines += "\n  rank " + std::to_string(rank) + ": " + channels[rank]->activity().text();
    return std::make_exception_ptr(e.within("", lines));
  } catch (...) { return error; }
}

/// The first line of `a` that is not the same in `b`; "nothing" past the end.
std::string first_difference(const std::string& a, const std::string& b) {
  std::istringstream first(a);
  std::istringstream second(b);
  std::string line;
  std::string other;
  while (std::getline(first, line)) {
    if (!std::getline(second, other) || line != other) return meeting::printable(line, 200);
  }
  return "nothing";
}

}  // namespace

void run_as_threads(const std::vector<std::unique_ptr<channel::Channel>>& channels,
                    const std::function<void(channel::Channel&)>& body) {
  std::mutex mutex;
  std::exception_ptr failure;
  {
    std::vector<std::jthread> threads;
    for (const auto& owner : channels) {
      threads.emplace_back([&, channel = owner.get()] {
        try {
          body(*channel);
        } catch (const std::exception& e) {
          {
            const std::lock_guard lock(mutex);
            if (!failure) failure = with_report(std::current_exception(), channels);
          }
          channel->abort("rank " + std::to_string(channel->rank()) + " failed: " + device::error_text(e));
        }
      });
    }
  }
  if (failure) std::rethrow_exception(failure);
}

void run_as_process(const meeting::LaunchInfo& launch, std::chrono::milliseconds deadline,
                    const std::function<void(Rendezvous&, std::unique_ptr<channel::Channel>&)>& body) {
  const auto rendezvous = join(launch, deadline);
  std::unique_ptr<channel::Channel> channel;  // outlives the catch below
  try {
    body(*rendezvous, channel);
    if (channel) channel->barrier();
    rendezvous->leave();
  } catch (const std::exception& e) {
    rendezvous->fail(device::error_text(e));
    throw;
  }
}

void agree(Rendezvous& rendezvous, const std::vector<std::string>& lines) {
  const std::vector<std::string> all = rendezvous.exchange("plan", fmt::format("{}\n", fmt::join(lines, "\n")));
  for (std::size_t rank = 1; rank < all.size(); ++rank) {
    if (all[rank] == all[0]) continue;
    throw InputError(
        ErrorKind::RanksDiffer,
        fmt::format("rank {0} has different options or files than rank 0: {1} instead of {2}; start all ranks with the "
                    "same",
                    rank, first_difference(all[rank], all[0]), first_difference(all[0], all[rank])));
  }
}

AgreedChannel agree_on_channel(Rendezvous& rendezvous, const std::string& device) {
  const std::vector<const channel::ChannelKind*> kinds = channel::fitting_channels(device, true);
  std::string missing;  // a line per channel: why this rank does not have it
  for (const channel::ChannelKind* kind : kinds)
    missing += meeting::printable(kind->why_missing ? kind->why_missing() : "", 400) + "\n";
  std::vector<std::vector<std::string>> reasons;  // by rank, then by channel
  for (const std::string& text : rendezvous.exchange("channels", missing)) {
    std::istringstream lines(text);
    reasons.emplace_back();
    for (std::string line; std::getline(lines, line);) reasons.back().push_back(line);
    reasons.back().resize(kinds.size());
  }
  std::string note;
  for (std::size_t i = 0; i < kinds.size(); ++i) {
    const auto lacks = std::ranges::find_if(reasons, [&](const auto& of_rank) { return !of_rank[i].empty(); });
    if (lacks == reasons.end()) {
      if (!note.empty()) note = fmt::format("using channel {}: {}", kinds[i]->name, note);
      return {kinds[i]->name, note};
    }
    note += fmt::format("{}rank {} has no channel {}: {}", note.empty() ? "" : "; ", lacks - reasons.begin(),
                        kinds[i]->name, meeting::printable((*lacks)[i], 400));
  }
  throw std::invalid_argument("the ranks have no channel in common: " + note);
}

std::vector<int> machines_of(Rendezvous& rendezvous) {
  std::string boot;
  std::ifstream("/proc/sys/kernel/random/boot_id") >> boot;
  std::error_code error;
  const std::string network = std::filesystem::read_symlink("/proc/self/ns/net", error).string();
  std::vector<std::string> seen;
  std::vector<int> out;
  for (const std::string& machine : rendezvous.exchange("machine", fmt::format("{} {}", boot, network))) {
    const auto place = std::ranges::find(seen, machine);
    out.push_back(to_int(place - seen.begin()));
    if (place == seen.end()) seen.push_back(machine);
  }
  return out;
}

std::function<double()> common_clock(Rendezvous& rendezvous) {
  const auto raw = [] {
    return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
  };
  std::string boot;
  std::ifstream("/proc/sys/kernel/random/boot_id") >> boot;
  const std::vector<std::string> boots = rendezvous.exchange("boot", boot);
  const bool one_machine =
      std::all_of(boots.begin(), boots.end(), [&](const std::string& b) { return b == boots.front(); });
  const std::vector<std::string> starts = rendezvous.exchange("clock", fmt::format("{}", raw()));
  const std::string& text = starts.front();
  const std::optional<double> first = number_in<double>(text);
  if (!first) throw meeting::PeerError("rank 0 says that its clock shows \"" + meeting::printable(text, 40) + "\"");
  const double origin = one_machine ? *first : raw();
  return [raw, origin] { return raw() - origin; };
}

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
