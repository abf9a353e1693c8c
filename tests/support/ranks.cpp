#include "tests/support/ranks.h"

#include <exception>
#include <latch>
#include <mutex>
#include <optional>
#include <thread>

#include "executor/launch/rendezvous.h"
#include "executor/meeting/meeting_store.h"

namespace stagecraft {

void run_on_ranks(const std::string& name, int ranks, std::chrono::milliseconds deadline,
                  const std::function<void(Channel&)>& body) {
  std::vector<std::unique_ptr<Channel>> channels(static_cast<std::size_t>(ranks));
  if (name == "local") channels = make_local_channels(ranks, deadline);
  std::optional<StoreServer> server;
  if (name == "gloo") server.emplace();

  std::mutex mutex;
  std::exception_ptr first;
  std::latch all_ended(ranks);
  const auto run_rank = [&](int rank) {
    std::unique_ptr<Channel>& channel = channels[static_cast<std::size_t>(rank)];
    try {
      if (name == "gloo") {
        LaunchInfo launch;
        launch.rank = launch.local_rank = rank;
        launch.ranks = ranks;
        launch.port = server->port();
        launch.served = true;
        channel = make_gloo_channel(launch, deadline);
      }
      body(*channel);
    } catch (...) {
      const std::lock_guard lock(mutex);
      if (!first) first = std::current_exception();
      if (channel) channel->abort("another rank's body threw");
    }
    all_ended.arrive_and_wait();  // a channel that goes early is a dead peer to the others
  };
  {
    std::vector<std::jthread> threads;
    for (int rank = 0; rank < ranks; ++rank) threads.emplace_back(run_rank, rank);
  }
  channels.clear();
  if (first) std::rethrow_exception(first);
}

}  // namespace stagecraft
