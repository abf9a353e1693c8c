#include <gtest/gtest.h>

#include <cstdint>
#include <cstdlib>
#include <new>
#include <string>
#include <utility>
#include <vector>

#include "costmodel/bound_plan.h"
#include "costmodel/index.h"
#include "costmodel/simulation/simulate.h"
#include "tests/costmodel/interleavings.h"

// Replaces operator new to count allocations: a program of its own.

namespace {

std::int64_t allocations = 0;

}  // namespace

[[gnu::noinline]] void* operator new(std::size_t bytes) {
  ++allocations;
  if (void* const out = std::malloc(bytes ? bytes : 1)) return out;
  throw std::bad_alloc();
}
[[gnu::noinline]] void operator delete(void* memory) noexcept { std::free(memory); }
[[gnu::noinline]] void operator delete(void* memory, std::size_t) noexcept { std::free(memory); }

namespace stagecraft {
namespace {

using stagecraft::testing::row_plan;

/// Each message takes 0.25 s on ports that all ranks share, and both ends' threads 0.0625 s of that; forwards take 1 s,
/// backwards 2 s.
SimulationInput input_of(const std::string& schedule, const std::vector<int>& replicas, int microbatches) {
  BoundPlan plan(row_plan(schedule, replicas, microbatches, schedule == "interleaved-1f1b" ? 2 : 1));
  const int steps = plan.step_window().steps;
  auto lists = plan.action_lists(steps);
  SimulationInput out{.plan = std::move(plan), .lists = std::move(lists), .stages = {}, .steps = steps};
  for (std::size_t s = 0; s < replicas.size(); ++s) {
    out.stages.push_back({Seconds(1), Seconds(2), Seconds(0.5), Seconds(0.5), Seconds(0.25)});
    out.stages.back().buckets = {{Seconds(0.25), Seconds(0.125)}};
  }
  out.ports = 2;
  out.transfer = [](int, bool, int, int) {
    return Transfer{.latency = Seconds(0.125),
                    .transmission = Seconds(0.125),
                    .egress = 0,
                    .ingress = 1,
                    .sender = {Seconds(0.03125), Seconds(0.03125)},
                    .receiver = {Seconds(0.03125), Seconds(0.03125)}};
  };
  return out;
}

/// The ranks on one host with two processors, which slow each other down.
SimulationInput on_one_host(SimulationInput input, MessageThread thread) {
  input.hosts.of_rank.assign(input.lists.size(), 0);
  input.hosts.processors = 2;
  input.hosts.slowdown = {1, 1.25};
  input.hosts.message_thread = thread;
  return input;
}

std::int64_t allocations_of(const SimulationInput& input) {
  const std::int64_t before = allocations;
  const auto result = simulate(input);
  EXPECT_TRUE(std::holds_alternative<Timeline>(result));
  return allocations - before;
}

/// Schedules, and the replicas of their stages.
std::vector<std::pair<std::string, std::vector<int>>> shapes() {
  return {{"gpipe", {1, 1, 1}},
          {"1f1b", {1, 1, 1, 1}},
          {"1f1b", {2, 1, 3}},
          {"zb-h1", {1, 1, 1}},
          {"interleaved-1f1b", {1, 1, 1, 1}},
          {"pipedream", {2, 1}},
          {"pipedream-2bw", {1, 1, 1}}};
}
constexpr int kFew = 192;
constexpr int kMany = 1920;

TEST(SimulateAllocations, AreCounted) {
  const std::int64_t before = allocations;
  const std::vector<int> numbers(100);
  EXPECT_EQ(numbers.size(), 100u);
  EXPECT_EQ(allocations - before, 1);
}

TEST(SimulateAllocations, DoNotGrowWithTheMicrobatches) {
  for (const auto& [schedule, replicas] : shapes()) {
    EXPECT_EQ(allocations_of(input_of(schedule, replicas, kMany)), allocations_of(input_of(schedule, replicas, kFew)))
        << schedule << " of " << replicas.size() << " stages";
  }
}

TEST(SimulateAllocations, DoNotGrowWithTheMicrobatchesOnASharedHost) {
  for (const auto& [schedule, replicas] : shapes()) {
    for (const MessageThread thread : {MessageThread::Separate, MessageThread::Own}) {
      // A queue of a port may reach its greatest length late.
      EXPECT_LE(allocations_of(on_one_host(input_of(schedule, replicas, kMany), thread)),
                allocations_of(on_one_host(input_of(schedule, replicas, kFew), thread)) + 1)
          << schedule << " of " << replicas.size() << " stages";
    }
  }
}

TEST(SimulateAllocations, DoNotGrowWithTheMicrobatchesWhileAPeriodIsSought) {
  const auto watched = [](int microbatches) {
    SimulationInput input = input_of("1f1b", {1, 1, 1}, microbatches);
    PeriodSearch watch;
    const std::int64_t before = allocations;
    EXPECT_TRUE(std::holds_alternative<Timeline>(simulate_and_watch(input, watch)));
    return allocations - before;
  };
  EXPECT_EQ(watched(kMany), watched(kFew));
}

}  // namespace
}  // namespace stagecraft
