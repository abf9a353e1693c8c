#include "tests/executor/channel/nccl_ranks.h"

#include <gmock/gmock.h>

#include <exception>
#include <latch>
#include <mutex>
#include <numeric>
#include <thread>

#include "costmodel/index.h"
#include "executor/channel/channel_local.h"
#include "executor/channel/nccl/channel_nccl.h"
#include "executor/meeting/meeting_store.h"
#include "tests/support/channels/launch_at.h"
#include "tests/support/channels/ranks.h"
#include "tests/support/fakes/fake_nccl.h"

// The suite's channels, for a program that is linked with the fake NCCL library.

namespace stagecraft {
namespace {

/// The suite's sends and reductions: every edge under every tag, and the groups that reduce.
channel::NcclProgram program_of_the_suite(int ranks) {
  channel::NcclProgram out;
  std::vector<int> all(to_index(ranks));
  std::iota(all.begin(), all.end(), 0);
  std::vector<int> tags(32);
  std::iota(tags.begin(), tags.end(), 0);
  for (const int from : all) {
    for (const int to : all) {
      if (from == to) continue;
      out.communicators.push_back(
          {"edge " + std::to_string(from) + " " + std::to_string(to), {from, to}, tags, false, 0});
    }
  }
  if (ranks > 1) out.communicators.push_back({"sum of all", all, tags, true, 0});
  if (ranks > 2) {
    out.communicators.push_back({"sum of the outer two", {0, ranks - 1}, tags, true, 0});
    out.communicators.push_back({"sum of the first two", {0, 1}, tags, true, 0});
  }
  out.rounds = channel::assign_rounds(out.communicators);
  return out;
}

}  // namespace

std::vector<std::string> suite_channels() { return {"nccl"}; }
std::string channel_device(const std::string& /*name*/) { return "cuda"; }

void run_on_ranks(const std::string& /*name*/, int ranks, std::chrono::milliseconds deadline,
                  const std::function<void(channel::Channel&)>& body) {
  run_on_nccl(ranks, program_of_the_suite(ranks), deadline, [&](int, channel::Channel& channel) { body(channel); },
              {.deterministic = true});
}

void run_on_nccl(int ranks, const channel::NcclProgram& program, std::chrono::milliseconds deadline,
                 const std::function<void(int rank, channel::Channel&)>& body, const channel::NcclOptions& options,
                 std::chrono::milliseconds control_deadline) {
  const meeting::StoreServer server;
  auto controls = channel::make_local_channels(ranks, control_deadline);
  std::mutex mutex;
  std::exception_ptr first;
  std::latch all_ended(ranks);
  {
    std::vector<std::jthread> threads;
    for (int rank = 0; rank < ranks; ++rank) {
      threads.emplace_back([&, rank] {
        std::unique_ptr<channel::Channel> channel;
        try {
          channel = channel::make_nccl_channel(testing::launch_at(server, rank, ranks), program,
                                               std::move(controls[to_index(rank)]), c10::Device(c10::kCPU), deadline,
                                               options);
          testing::record_fake_calls();
          body(rank, *channel);
        } catch (const std::exception& error) {
          const std::lock_guard lock(mutex);
          if (!first) first = std::current_exception();
          if (channel) channel->abort(error.what());
        }
        all_ended.arrive_and_wait();  // to the others, a channel destroyed early is a dead peer
      });
    }
  }
  EXPECT_THAT(testing::fake_violations(), ::testing::IsEmpty());
  EXPECT_EQ(testing::fake_communicators(), 0);
  if (first) std::rethrow_exception(first);
}

}  // namespace stagecraft
