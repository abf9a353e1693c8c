#include "executor/channel/nccl/channel_nccl.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <latch>
#include <map>
#include <set>
#include <thread>

#include "costmodel/errors.h"
#include "costmodel/index.h"
#include "executor/channel/channel_local.h"
#include "executor/channel/control_tags.h"
#include "executor/meeting/launch_info.h"
#include "executor/meeting/meeting_store.h"
#include "executor/run/binding/nccl_calls.h"
#include "executor/run/run.h"
#include "tests/executor/channel/nccl_ranks.h"
#include "tests/executor/channel/nccl_suite.h"
#include "tests/support/channels/launch_at.h"
#include "tests/support/fakes/fake_nccl.h"
#include "tests/support/models/planned_models.h"
#include "tests/support/schedule_shapes.h"

// The NCCL channel over a fake library: streams are threads, transfers follow NCCL's rules, nothing is buffered. Only a
// machine with GPUs can test the real library with the same calls.

namespace stagecraft::channel {
namespace {

using stagecraft::testing::break_fake;
using stagecraft::testing::cut_plan;
using stagecraft::testing::even_cuts;
using stagecraft::testing::FakeCall;
using stagecraft::testing::FakeCompute;
using stagecraft::testing::planned_model;
using stagecraft::testing::PlannedModel;
using stagecraft::testing::stall_fake;
using stagecraft::testing::take_fake_calls;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

class NcclChannelOf : public ::testing::TestWithParam<int> {};
INSTANTIATE_TEST_SUITE_P(Ranks, NcclChannelOf, ::testing::Values(2, 3, 4));

TEST_P(NcclChannelOf, DeliversEveryElementOfEveryDtypeInOrderOnEveryEdge) {
  run_on_nccl(GetParam(), all_to_all(GetParam()), kLong,
              [&](int, Channel& channel) { expect_deliveries(channel, c10::Device(c10::kCPU)); });
}

TEST_P(NcclChannelOf, OrdersItsStreams) {
  run_on_nccl(GetParam(), all_to_all(GetParam()), kLong,
              [&](int, Channel& channel) { expect_ordered_streams(channel, c10::Device(c10::kCPU)); });
}

TEST_P(NcclChannelOf, SumsOverItsMembersAndSendsTheRestOverTheControlChannel) {
  const int ranks = GetParam();
  for (const bool deterministic : {false, true}) {
    (void)take_fake_calls();
    run_on_nccl(ranks, all_to_all(ranks), kLong,
                [&](int, Channel& channel) { expect_sums_of_all(channel, c10::Device(c10::kCPU)); },
                {.deterministic = deterministic});
    const auto calls = take_fake_calls();
    EXPECT_EQ(calls.size(), 2U * to_index(ranks));
    for (const FakeCall& call : calls) {
      EXPECT_EQ(call.kind, deterministic && ranks > 2 ? "all-gather" : "all-reduce");
    }
  }
}

TEST_P(NcclChannelOf, CallsCollectivesOfNcclForEqualPartsAndExchangesUnequalOnes) {
  const int ranks = GetParam();
  (void)take_fake_calls();
  run_on_nccl(ranks, all_to_all(ranks), kLong, [&](int rank, Channel& channel) {
    CollectiveCall call{.kind = Collective::ReduceScatter,
                        .values = at::full({2 * ranks}, 1.0F),
                        .members = all_ranks(channel),
                        .tag = 100};
    const auto all_are = [](const at::Tensor& values, int value) { return values.eq(value).all().item<bool>(); };
    channel.start(call)->wait();
    EXPECT_TRUE(all_are(call.values.narrow(0, 2 * rank, 2), ranks));
    call.kind = Collective::AllGather;
    channel.start(call)->wait();
    EXPECT_TRUE(all_are(call.values, ranks));
    call.kind = Collective::ReduceScatter;
    call.counts.assign(to_index(ranks), 0);
    call.counts[0] = 2 * ranks;  // everyone sends to rank 0
    channel.start(call)->wait();
    EXPECT_TRUE(all_are(call.values, rank == 0 ? ranks * ranks : ranks));
  });
  std::map<std::string, int> calls;
  for (const FakeCall& call : take_fake_calls()) ++calls[call.kind];
  const std::map<std::string, int> expected{
      {"reduce-scatter", ranks}, {"all-gather", ranks}, {"send", ranks - 1}, {"receive", ranks - 1}};
  EXPECT_EQ(calls, expected);
}

TEST(NcclChannel, ReusesReceivedMemoryAfterTheLastReference) {
  run_on_nccl(2, all_to_all(2), kLong, [](int rank, Channel& channel) {
    const TensorSpec spec{{16}, at::kFloat};
    std::set<const void*> places;
    at::Tensor kept;
    for (int message = 0; message < 50; ++message) {
      if (rank == 0) {
        channel.send(numbered(spec, 0, 0, message), 1, 0)->wait();
      } else {
        const at::Tensor got = channel.receive(spec, 0, 0)->wait();
        EXPECT_TRUE(same(got, numbered(spec, 0, 0, message)));
        places.insert(got.const_data_ptr());
        if (message == 10) kept = got;
      }
    }
    channel.barrier();
    if (rank == 1) {
      EXPECT_EQ(places.size(), 2U);  // the kept tensor and one more
      EXPECT_TRUE(same(kept, numbered(spec, 0, 0, 10)));
    }
  });
}

TEST(NcclChannel, NamesTheLateTransfer) {
  std::vector<std::string> errors(2);
  try {
    run_on_nccl(2, all_to_all(2), kShort, [&](int rank, Channel& channel) {
      channel.barrier();
      if (rank == 0) stall_fake("edge 0 1");
      channel.barrier();
      const TensorSpec spec{{4}, at::kFloat};
      const at::Tensor values = numbered(spec, 0, 0, 0);
      errors[to_index(rank)] = error_of([&] {
        if (rank == 0) channel.send(values, 1, 2)->wait();
        if (rank == 1) (void)channel.receive(spec, 0, 2)->wait();
        channel.barrier();
      });
    });
  } catch (const meeting::PeerError&) {}
  stall_fake("");
  // The first rank to notice reports for both.
  for (const std::string& error : errors) {
    EXPECT_THAT(error, HasSubstr(" waited 0.3 s for ")) << error;
    EXPECT_THAT(error, HasSubstr(" under tag 2 of edge 0 1")) << error;
  }
}

TEST(NcclChannel, ReportsAnErrorOfTheLibrary) {
  std::vector<std::string> errors(2);
  try {
    run_on_nccl(2, all_to_all(2), kLong, [&](int rank, Channel& channel) {
      channel.barrier();
      if (rank == 0) break_fake("edge 1 0");
      errors[to_index(rank)] = error_of([&] {
        const auto end = std::chrono::steady_clock::now() + kLong;
        while (std::chrono::steady_clock::now() < end) channel.barrier();
      });
    });
  } catch (const meeting::PeerError&) {}
  break_fake("");
  for (const std::string& error : errors) EXPECT_THAT(error, HasSubstr("edge 1 0: ncclResult_t 6 (remote error)"));
}

TEST(NcclChannel, AbortEndsTheTransfersOfAllRanks) {
  std::vector<std::string> errors(3);
  run_on_nccl(3, all_to_all(3), kLong, [&](int rank, Channel& channel) {
    errors[to_index(rank)] = error_of([&] {
      if (rank == 1) channel.abort("rank 1 has had enough");
      // No rank sends it.
      (void)channel.receive({{4}, at::kFloat}, (rank + 1) % 3, 0)->wait();
    });
  });
  EXPECT_THAT(errors, ::testing::Each("rank 1 has had enough"));
}

TEST(NcclChannel, AbortReachesAllCommunicatorsBeforeItWaitsForOne) {
  // Rank 0's send waits for compute, which waits for a message that rank 1 never sends.
  std::vector<std::string> errors(2);
  run_on_nccl(2, all_to_all(2), kShort, [&](int rank, Channel& channel) {
    FakeCompute compute;
    errors[to_index(rank)] = error_of([&] {
      const TensorSpec spec{{4}, at::kFloat};
      const at::Tensor values = numbered(spec, 0, 1, 0);
      std::unique_ptr<Sending> sending;
      if (rank == 0) {
        (void)channel.receive(spec, 1, 0)->wait();
        sending = channel.send(values, 1, 1);
      }
      const auto end = std::chrono::steady_clock::now() + kLong;
      while (std::chrono::steady_clock::now() < end) channel.barrier();
    });
  });
  for (const std::string& error : errors)
    EXPECT_THAT(error, HasSubstr("rank 0 waited 0.3 s for receive 1 under tag 0 of edge 1 0")) << error;
}

TEST(NcclChannel, RefusesAnImplicitLaunchOrder) {
  const meeting::StoreServer server;
  const meeting::LaunchInfo launch = testing::launch_at(server, 0, 1);
  ::setenv("NCCL_LAUNCH_ORDER_IMPLICIT", "1", 1);
  std::string error;
  try {
    (void)make_nccl_channel(launch, {}, std::move(make_local_channels(1, kLong)[0]), c10::Device(c10::kCPU), kLong);
  } catch (const DeviceError& refused) { error = refused.what(); }
  ::unsetenv("NCCL_LAUNCH_ORDER_IMPLICIT");
  EXPECT_THAT(error, HasSubstr("NCCL_LAUNCH_ORDER_IMPLICIT is 1: "));
  EXPECT_THAT(error, HasSubstr("unset it"));
}

/// Messages of two tensors from rank 0 to rank 1.
NcclProgram pairs_of_tensors(const TensorSpec& first, const TensorSpec& second) {
  NcclProgram out;
  out.communicators = {{"edge", {0, 1}, {0, 1}, false, 0}};
  out.rounds = 1;
  out.calls = {{{NcclCall::Kind::Send, 0, 0, first}, {NcclCall::Kind::Send, 0, 1, second, true}},
               {{NcclCall::Kind::Receive, 0, 0, first}, {NcclCall::Kind::Receive, 0, 1, second, true}}};
  return out;
}

TEST(NcclChannel, CarriesTheTensorsOfAMessageTogether) {
  const std::vector<TensorSpec> specs{{{3, 5}, at::kFloat}, {{7}, at::kLong}};
  (void)take_fake_calls();
  run_on_nccl(2, pairs_of_tensors(specs[0], specs[1]), kLong, [&](int rank, Channel& channel) {
    // The fake library refuses two ends that group otherwise, and a size that was not exchanged at the start.
    testing::require_connected_fake();
    for (int message = 0; message < 3; ++message) {
      const std::vector<at::Tensor> values{numbered(specs[0], 0, 0, message), numbered(specs[1], 0, 1, message)};
      if (rank == 0) {
        std::vector<std::unique_ptr<Sending>> sends;
        channel.send_message(values, 1, std::vector{0, 1}, sends);
        ASSERT_EQ(sends.size(), 2U);
        for (const auto& sending : sends) sending->wait();
      } else {
        std::vector<std::unique_ptr<Receiving>> receives;
        channel.receive_message(specs, 0, std::vector{0, 1}, receives);
        ASSERT_EQ(receives.size(), 2U);
        for (std::size_t i = 0; i < 2; ++i) EXPECT_TRUE(same(receives[i]->wait(), values[i]));
      }
    }
    channel.barrier();
  });
  EXPECT_EQ(take_fake_calls().size(), 12U);
}

TEST(NcclChannel, RefusesAMessageOverTwoCommunicators) {
  run_on_nccl(2, all_to_all(2), kLong, [&](int rank, Channel& channel) {
    if (rank == 1) return;
    const std::vector<at::Tensor> values{numbered({{4}, at::kFloat}, 0, 0, 0), numbered({{4}, at::kFloat}, 0, 1, 0)};
    std::vector<std::unique_ptr<Sending>> sends;
    EXPECT_THAT([&] { channel.send_message(values, 1, std::vector{0, 9}, sends); },
                ::testing::ThrowsMessage<std::invalid_argument>(
                    "rank 0: tags 0 and 9 of one message go over different communicators"));
  });
}

TEST(NcclChannel, ReceivesFirstMessagesWhileTheDeviceComputes) {
  const TensorSpec spec{{4}, at::kFloat};
  std::latch received(1);
  run_on_nccl(2, pairs_of_tensors(spec, spec), kLong, [&](int rank, Channel& channel) {
    const std::vector<at::Tensor> values{numbered(spec, 0, 0, 0), numbered(spec, 0, 1, 0)};
    FakeCompute compute;
    if (rank == 0) {
      std::vector<std::unique_ptr<Sending>> sends;
      channel.send_message(values, 1, std::vector{0, 1}, sends);
      const auto end = std::chrono::steady_clock::now() + std::chrono::seconds(5);
      while (!sends[1]->done() && std::chrono::steady_clock::now() < end) std::this_thread::yield();
      EXPECT_TRUE(sends[1]->done()) << "the receive waits for work that was enqueued before it";
      received.count_down();
    } else {
      compute.launch([&] { received.wait(); });
      std::vector<std::unique_ptr<Receiving>> receives;
      channel.receive_message(std::vector{spec, spec}, 0, std::vector{0, 1}, receives);
      for (const auto& receiving : receives) (void)receiving->wait();
      compute.synchronize();
    }
    channel.barrier();
  });
}

TEST(NcclChannel, FinishesTransfersBeforeItIsDestroyed) {
  const TensorSpec spec{{4}, at::kFloat};
  const at::Tensor values = numbered(spec, 0, 0, 0);
  std::unique_ptr<Sending> sending;  // keeps its tensor
  at::Tensor got;                    // outlives the computation, which reads it
  std::unique_ptr<FakeCompute> compute;
  std::atomic<bool> arrived = false;
  std::jthread later;
  run_on_nccl(2, all_to_all(2), kLong, [&](int rank, Channel& channel) {
    channel.barrier();
    if (rank == 0) {
      stall_fake("edge 0 1");
      channel.barrier();
      sending = channel.send(values, 1, 0);
      later = std::jthread([] {
        std::this_thread::sleep_for(std::chrono::milliseconds(50));
        stall_fake("");
      });
    } else {
      channel.barrier();
      compute = std::make_unique<FakeCompute>();
      got = channel.receive(spec, 0, 0)->wait();
      compute->launch([&arrived, &values, begin = got.const_data_ptr<float>()] {
        arrived = std::equal(begin, begin + 4, values.const_data_ptr<float>());
      });
    }
  });
  compute->synchronize();
  EXPECT_TRUE(arrived);
}

TEST(NcclChannel, NamesTheRankMissingFromACommunicator) {
  const meeting::StoreServer server;
  auto controls = make_local_channels(2, kLong);
  const auto error_at = [&](int rank) {
    return error_of([&] {
      (void)make_nccl_channel(testing::launch_at(server, rank, 2), all_to_all(2), std::move(controls[to_index(rank)]),
                              c10::Device(c10::kCPU), kShort);
    });
  };
  EXPECT_EQ(error_at(1), "rank 1 waited 0.3 s for rank 0 to start NCCL communicator \"edge 0 1\"");
  EXPECT_EQ(error_at(0), "rank 0 waited 0.3 s for ncclCommInitRankConfig of NCCL communicator \"edge 0 1\"");
}

/// The kinds and bytes of NCCL's calls that one call of a program is for the member at `place`.
std::vector<std::pair<std::string, std::size_t>> nccl_calls(const NcclCall& call, std::size_t place) {
  const auto all = to_index(bytes_of(call));
  if (call.kind == NcclCall::Kind::Send) return {{"send", all}};
  if (call.kind == NcclCall::Kind::Receive) return {{"receive", all}};
  if (call.kind == NcclCall::Kind::AllReduce) return {{"all-reduce", all}};
  const bool gathers = call.kind == NcclCall::Kind::AllGather;
  if (std::ranges::adjacent_find(call.counts, std::not_equal_to<>()) == call.counts.end())
    return {gathers ? std::pair("all-gather", all / call.counts.size()) : std::pair("reduce-scatter", all)};
  std::vector<std::pair<std::string, std::size_t>> out;
  for (std::size_t i = 0; i < call.counts.size(); ++i) {
    const auto own = to_index(call.counts[place]) * sizeof(float);
    const auto theirs = to_index(call.counts[i]) * sizeof(float);
    if (i == place) continue;
    if (const auto sent = gathers ? own : theirs; sent > 0) out.emplace_back("send", sent);
    if (const auto received = gathers ? theirs : own; received > 0) out.emplace_back("receive", received);
  }
  return out;
}

/// Trains over the fake NCCL and over local channels: both give the same bits, and the calls match the plan's program.
void expect_trains_alike(const PlannedModel& planned, const Plan& plan, const run::RunOptions& options,
                         const std::string& what) {
  const BoundPlan bound_plan(plan);
  const run::BoundModel bound = run::bind_model(bound_plan, planned.model);
  const bool asynchronous = bound_plan.asynchronous();
  const NcclProgram program = run::nccl_program(bound, to_int(options.steps));
  const int count = to_int(bound_plan.ranks().size());
  (void)take_fake_calls();
  const auto begin = std::chrono::steady_clock::now();
  const auto now = [begin] { return std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count(); };
  run::RunResult result;
  run_on_nccl(count, program, std::chrono::minutes(1), [&](int rank, Channel& channel) {
    run::RunResult run_result = run::run_rank(bound, *planned.data, options, rank, channel, now);
    if (rank == 0) result = std::move(run_result);
  });
  const run::RunResult expected = run::run_local(plan, planned.model, *planned.data, options, std::chrono::minutes(1));
  EXPECT_EQ(result.measurement.losses, expected.measurement.losses) << what;
  if (options.check) {
    EXPECT_EQ(result.check->different, 0) << what;
    EXPECT_GT(result.check->values, 0) << what;
  }
  // Per communicator and rank, as threads run in any order.
  std::map<std::pair<std::string, int>, std::vector<std::pair<std::string, std::size_t>>> made, foretold;
  for (const FakeCall& call : take_fake_calls())
    made[{call.communicator, call.rank}].emplace_back(call.kind, call.bytes);
  for (std::size_t rank = 0; rank < program.calls.size(); ++rank) {
    for (std::int64_t step = 0; step < (asynchronous ? 1 : options.steps); ++step) {
      for (const NcclCall& call : program.calls[rank]) {
        const CommunicatorPlan& on = program.communicators[to_index(call.communicator)];
        const auto place = to_index(std::ranges::find(on.ranks, to_int(rank)) - on.ranks.begin());
        const std::vector<std::pair<std::string, std::size_t>> calls = nccl_calls(call, place);
        auto& of_rank = foretold[{on.name, to_int(place)}];
        of_rank.insert(of_rank.end(), calls.begin(), calls.end());
      }
    }
  }
  EXPECT_EQ(made, foretold) << what;
}

TEST(NcclRun, TrainsLikeTheLocalChannelAndMakesThePredictedCalls) {
  const PlannedModel mlp = planned_model("mlp", {{"inputs", "12"}, {"width", "16"}, {"layers", "4"}}, 3);
  const int layers = to_int(mlp.model.layers.size());
  run::RunOptions options;
  options.steps = 2;
  options.optimizer.learning_rate = 0.01;
  for (const ScheduleEntry& schedule : schedules()) {
    for (const std::vector<int>& replicas : std::vector<std::vector<int>>{{2, 1}, {1, 2}, {1, 1, 1}, {2, 3, 1}}) {
      // Odd where the schedule allows it, so that replicas have different numbers of microbatches.
      const int microbatches = testing::runs_one_stage_per_rank(schedule, replicas, 5) ? 5 : 12;
      if (!testing::runs_one_stage_per_rank(schedule, replicas, microbatches)) continue;
      const Plan plan =
          cut_plan(mlp, even_cuts(layers, to_int(replicas.size())), replicas, schedule.name, microbatches);
      options.check = schedule.name == "1f1b";
      std::string what = schedule.name + " replicas";
      for (const int r : replicas) what += " " + std::to_string(r);
      expect_trains_alike(mlp, plan, options, what);
    }
  }
}

TEST(NcclRun, DividesTheOptimizersStateAsTheLocalChannelAndMakesThePredictedCalls) {
  const PlannedModel mlp = planned_model("mlp", {{"inputs", "30"}, {"width", "50"}, {"layers", "4"}}, 2);
  const PlannedModel gpt = planned_model(
      "gpt", {{"layers", "1"}, {"width", "24"}, {"heads", "2"}, {"vocabulary", "64"}, {"sequence", "8"}}, 2);
  const PlannedModel convnet = planned_model("convnet", {{"channels", "4"}}, 2);
  run::RunOptions options;
  options.steps = 3;
  options.optimizer = {.name = "adamw", .learning_rate = 0.01, .clip_norm = 0.1};
  for (const PlannedModel* const planned : {&mlp, &gpt, &convnet}) {
    const int layers = to_int(planned->model.layers.size());
    for (const std::vector<int>& replicas : std::vector<std::vector<int>>{{2}, {3}, {2, 1}, {2, 3}}) {
      for (const std::optional<Bytes> bucket : {std::optional<Bytes>(), std::optional(Bytes(4000))}) {
        Plan plan = cut_plan(*planned, even_cuts(layers, to_int(replicas.size())), replicas, "1f1b", 3);
        plan.gradient_bucket_bytes = bucket;
        plan.sharding = StateSharding::Optimizer;
        const std::string what = planned->model.name + " on " + std::to_string(replicas.front());
        expect_trains_alike(*planned, plan, options, what);
        plan.sharding = StateSharding::Parameters;
        plan.microbatches = 6;
        expect_trains_alike(*planned, plan, options, what);
      }
    }
  }
}

TEST(NcclRun, CarriesTiedParametersSkipsAndSeveralStagesOnARank) {
  const PlannedModel gpt = planned_model(
      "gpt", {{"layers", "3"}, {"width", "16"}, {"heads", "2"}, {"vocabulary", "32"}, {"sequence", "8"}}, 2);
  const int layers = to_int(gpt.model.layers.size());
  run::RunOptions options;
  options.steps = 3;
  options.check = true;
  expect_trains_alike(gpt, cut_plan(gpt, even_cuts(layers, 3), {2, 1, 1}, "1f1b", 4), options, "gpt 2 1 1");
  Plan bucketed = cut_plan(gpt, even_cuts(layers, 2), {2, 3}, "1f1b", 5);
  bucketed.gradient_bucket_bytes = Bytes(2000);
  expect_trains_alike(gpt, bucketed, options, "gpt 2 3 in buckets");
  const PlannedModel convnet = planned_model("convnet", {{"channels", "4"}}, 2);
  const int cut = to_int(convnet.model.layers.size()) / 2;
  expect_trains_alike(convnet, cut_plan(convnet, {cut}, {3, 2}, "1f1b", 4), options, "batch norm");
  Plan interleaved = cut_plan(gpt, even_cuts(layers, 4), {1, 1, 1, 1}, "gpipe", 4);
  interleaved.schedule = "interleaved-1f1b";
  interleaved.chunks = 2;
  for (int s = 0; s < 4; ++s) interleaved.stages[to_index(s)].devices = {s % 2};
  expect_trains_alike(gpt, interleaved, options, "gpt interleaved");
}

}  // namespace
}  // namespace stagecraft::channel
