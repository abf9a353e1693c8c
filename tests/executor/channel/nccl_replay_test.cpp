#include <ATen/ops/from_blob.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <cstring>
#include <deque>
#include <latch>
#include <map>
#include <random>
#include <thread>

#include "costmodel/errors.h"
#include "costmodel/index.h"
#include "costmodel/schedule.h"
#include "executor/channel/nccl/channel_nccl.h"
#include "executor/run/binding/nccl_calls.h"
#include "tests/executor/channel/channel_suite.h"
#include "tests/executor/channel/nccl_ranks.h"
#include "tests/support/fakes/fake_nccl.h"
#include "tests/support/models/planned_models.h"
#include "tests/support/models/random_plans.h"

// Plans replayed over the NCCL channel as on GPUs: the host thread only enqueues; kernels run later, on the compute
// stream's thread, and check every byte that they read.

namespace stagecraft::channel {
namespace {

using stagecraft::testing::FakeCompute;
using stagecraft::testing::planned_model;
using stagecraft::testing::PlannedModel;
using ::testing::IsEmpty;

/// What goes wrong in a run, once `rank` reaches its action number `action`.
struct Fault {
  enum Kind { None, Stops, Aborts, Stalls, Breaks } kind = None;
  int rank = 0;
  std::size_t action = 0;
  std::string communicator;  ///< that stalls or breaks
};

const char* const kFaultNames[] = {"no fault", "a rank stops", "a rank aborts", "a communicator stalls",
                                   "a communicator breaks"};

/// Every send and receive as two tensors of one message, the second a few bytes longer, under tags 2t and 2t + 1.
NcclProgram doubled(NcclProgram program) {
  for (CommunicatorPlan& edge : program.communicators) {
    if (edge.reduces) continue;
    std::vector<int> tags;
    for (const int tag : edge.tags) tags.insert(tags.end(), {2 * tag, 2 * tag + 1});
    edge.tags = tags;
  }
  for (auto& calls : program.calls) {
    std::vector<NcclCall> out;
    for (NcclCall call : calls) {
      if (!is_collective(call.kind)) {
        call.tag *= 2;
        out.push_back(call);
        call.joins = true;
        ++call.tag;
        call.spec.shape = {bytes_of(call) / 4 + 3};
        call.spec.dtype = at::kFloat;
      }
      out.push_back(call);
    }
    calls = out;
  }
  return program;
}

/// One rank's part of a replay.
class RankReplay {
 public:
  RankReplay(const BoundPlan& plan, const NcclProgram& program, int rank, Channel& channel, unsigned seed)
      : plan_(plan), program_(program), rank_(rank), channel_(channel), random_(seed + static_cast<unsigned>(rank)) {}

  /// False if the rank stopped.
  bool run(const std::vector<Action>& actions, const Fault& fault, int steps) {
    channel_.barrier();  // a fault comes after all channels are made
    for (int step = 0; step < steps; ++step) {
      next_ = 0;
      for (std::size_t i = 0; i < actions.size(); ++i) {
        if (fault.kind != Fault::None && fault.rank == rank_ && fault.action == i && step == 0) {
          if (fault.kind == Fault::Stops) return false;
          if (fault.kind == Fault::Aborts) throw meeting::PeerError("rank " + std::to_string(rank_) + " gives up");
          if (fault.kind == Fault::Stalls) testing::stall_fake(fault.communicator);
          if (fault.kind == Fault::Breaks) testing::break_fake(fault.communicator);
        }
        perform(actions[i]);
      }
      finish_reductions();
    }
    for (const auto& sending : sends_) sending->wait();
    sends_.clear();
    compute_.synchronize();
    channel_.barrier();
    return true;
  }
  /// Kernels that read something unexpected.
  [[nodiscard]] int wrong() const { return *wrong_; }
  void synchronize() { compute_.synchronize(); }

 private:
  const std::vector<NcclCall>& calls() const { return program_.calls[to_index(rank_)]; }
  const CommunicatorPlan& communicator_of(const NcclCall& call) const {
    return program_.communicators[to_index(call.communicator)];
  }
  /// The calls of one message.
  std::vector<NcclCall> take_message() {
    std::vector<NcclCall> out{calls().at(next_++)};
    while (next_ < calls().size() && calls()[next_].joins) out.push_back(calls()[next_++]);
    return out;
  }
  /// The byte that fills message number `number` under `tag`.
  static char pattern(int tag, int number) { return static_cast<char>(tag * 31 + number * 7 + 1); }

  at::Tensor allocate(const TensorSpec& spec, std::size_t bytes) {
    return at::from_blob(
        compute_.allocate(bytes), spec.shape, [this](void* memory) { compute_.free_memory(memory); },
        at::TensorOptions(spec.dtype));
  }
  void launch(std::function<void()> kernel) {
    const bool slow = random_() % 8 == 0;
    compute_.launch([kernel = std::move(kernel), slow] {
      if (slow) std::this_thread::sleep_for(std::chrono::microseconds(200));
      kernel();
    });
    if (random_() % 16 == 0) std::this_thread::sleep_for(std::chrono::microseconds(300));
  }
  void check(const at::Tensor& tensor, char byte) {
    const auto* begin = static_cast<const char*>(tensor.const_data_ptr());
    launch([begin, bytes = tensor.nbytes(), byte, wrong = wrong_] {
      if (std::any_of(begin, begin + bytes, [byte](char found) { return found != byte; })) ++*wrong;
    });
  }

  void perform(const Action& action) {
    switch (action.kind) {
      case ActionKind::SendActivation:
      case ActionKind::SendGradient: {
        const std::vector<NcclCall> message = take_message();
        std::vector<at::Tensor> tensors;
        std::vector<int> tags;
        for (const NcclCall& call : message) {
          tensors.push_back(allocate(call.spec, to_index(bytes_of(call))));
          tags.push_back(call.tag);
          const int number = numbers_[{call.communicator, call.tag}]++;
          launch([place = tensors.back().data_ptr(), bytes = tensors.back().nbytes(),
                  byte = pattern(call.tag, number)] { std::memset(place, byte, bytes); });
        }
        channel_.send_message(tensors, communicator_of(message.front()).ranks[1], tags, sends_);
        if (sends_.size() > 6) std::erase_if(sends_, [](const auto& sending) { return sending->done(); });
        return;
      }
      case ActionKind::ReceiveActivation:
      case ActionKind::ReceiveGradient: {
        const std::vector<NcclCall> message = take_message();
        std::vector<TensorSpec> specs;
        std::vector<int> tags;
        auto& posted = posted_[{action.kind == ActionKind::ReceiveGradient, action.stage, action.microbatch}];
        for (const NcclCall& call : message) {
          specs.push_back(call.spec);
          tags.push_back(call.tag);
          posted.bytes.push_back(pattern(call.tag, numbers_[{call.communicator, call.tag}]++));
        }
        channel_.receive_message(specs, communicator_of(message.front()).ranks[0], tags, posted.receiving);
        return;
      }
      case ActionKind::Forward:
      case ActionKind::Backward: {
        auto posted = std::move(posted_[{action.kind == ActionKind::Backward, action.stage, action.microbatch}]);
        for (std::size_t i = 0; i < posted.receiving.size(); ++i) check(posted.receiving[i]->wait(), posted.bytes[i]);
        launch([] {});
        return;
      }
      case ActionKind::Reduce:
        while (next_ < calls().size() && calls()[next_].kind == NcclCall::Kind::AllReduce) {
          const NcclCall& call = calls()[next_++];
          const std::vector<int>& members = communicator_of(call).ranks;
          const at::Tensor values = allocate(call.spec, to_index(bytes_of(call)));
          auto* const begin = static_cast<float*>(values.data_ptr());
          launch([begin, count = values.numel(), value = static_cast<float>(rank_ + 1)] {
            std::fill(begin, begin + count, value);
          });
          float sum = 0;
          for (const int member : members) sum += static_cast<float>(member + 1);
          reductions_.push_back(
              {channel_.start({.kind = Collective::AllReduce, .values = values, .members = members, .tag = call.tag}),
               values, sum});
        }
        return;
      case ActionKind::Update:
        finish_reductions();
        return;
      default:
        launch([] {});
    }
  }
  void finish_reductions() {
    for (const auto& reduction : reductions_) {
      reduction.reducing->wait();
      launch([begin = reduction.values.const_data_ptr<float>(), count = reduction.values.numel(), sum = reduction.sum,
              wrong = wrong_] {
        if (std::any_of(begin, begin + count, [sum](float value) { return value != sum; })) ++*wrong;
      });
    }
    reductions_.clear();
  }

  struct Posted {
    std::vector<std::unique_ptr<Receiving>> receiving;
    std::vector<char> bytes;  // expected, by tensor
  };
  struct Reduction {
    std::unique_ptr<CollectiveInProgress> reducing;
    at::Tensor values;
    float sum;
  };
  const BoundPlan& plan_;
  const NcclProgram& program_;
  int rank_;
  Channel& channel_;
  std::mt19937 random_;
  std::shared_ptr<std::atomic<int>> wrong_ = std::make_shared<std::atomic<int>>(0);
  FakeCompute compute_;                                  // before the tensors, which return their memory to it
  std::size_t next_ = 0;                                 // call
  std::map<std::pair<int, int>, int> numbers_;           // of messages, by communicator and tag
  std::map<std::tuple<bool, int, int>, Posted> posted_;  // by gradient, stage and microbatch
  std::vector<std::unique_ptr<Sending>> sends_;
  std::vector<Reduction> reductions_;
};

const PlannedModel& mlp() {
  static const PlannedModel planned = planned_model("mlp", {{"inputs", "12"}, {"width", "16"}, {"layers", "8"}}, 3);
  return planned;
}

struct Case {
  Plan plan;
  Fault fault;
  std::string what;
};

/// A random plan and fault.
Case random_case(unsigned seed) {
  std::mt19937 random(seed);
  const auto below = [&](int count) { return static_cast<int>(random() % static_cast<unsigned>(count)); };
  testing::RandomPlan drawn = testing::random_plan(mlp(), random);
  const BoundPlan bound(drawn.plan);
  Case out;
  out.plan = std::move(drawn.plan);
  out.fault.kind = static_cast<Fault::Kind>(seed % 2 == 0 ? 0 : 1 + below(4));
  out.fault.rank = below(to_int(bound.ranks().size()));
  out.fault.action = to_index(below(12));
  out.what = drawn.what + ", " + kFaultNames[out.fault.kind] + " at rank " + std::to_string(out.fault.rank) +
             ", action " + std::to_string(out.fault.action);
  return out;
}

void replay(unsigned seed) {
  Case drawn = random_case(seed);
  SCOPED_TRACE("seed " + std::to_string(seed) + ": " + drawn.what);
  const BoundPlan plan(drawn.plan);
  const int steps = plan.asynchronous() ? 3 : 1;
  const run::BoundModel bound = run::bind_model(plan, mlp().model);
  const NcclProgram program = doubled(run::nccl_program(bound, steps));
  ASSERT_EQ(find_mismatch(program), "");
  if (!program.communicators.empty())
    drawn.fault.communicator = program.communicators[seed % program.communicators.size()].name;
  const auto lists = plan.action_lists(steps);
  const int ranks = to_int(lists.size());
  std::vector<std::string> errors(lists.size());
  std::vector<std::unique_ptr<RankReplay>> replays(lists.size());  // outlive the channels, as a process its memory
  std::vector<char> stopped(lists.size());                         // not bool, whose values share bytes
  const bool faulty = drawn.fault.kind != Fault::None;
  run_on_nccl(
      ranks, program, faulty ? std::chrono::milliseconds(150) : kLong,
      [&](int rank, Channel& channel) {
        const std::size_t r = to_index(rank);
        testing::require_connected_fake();
        replays[r] = std::make_unique<RankReplay>(plan, program, rank, channel, seed);
        try {
          stopped[r] = !replays[r]->run(lists[r], drawn.fault, plan.asynchronous() ? 1 : 2);
        } catch (const meeting::PeerError& error) {
          errors[r] = error.what();
          channel.abort(error.what());
        } catch (const DeviceError& error) {
          errors[r] = error.what();
          channel.abort(error.what());
        }
        replays[r]->synchronize();  // its kernels read the channel's memory
      },
      {}, faulty ? std::chrono::milliseconds(500) : kLong);
  testing::stall_fake("");
  testing::break_fake("");
  int failed = 0;
  int running = 0;
  for (std::size_t r = 0; r < lists.size(); ++r) {
    if (stopped[r]) continue;
    ++running;
    failed += errors[r].empty() ? 0 : 1;
  }
  // What aborted transfers leave behind is read, too, by kernels that were enqueued before.
  if (failed == 0 && running == ranks) {
    for (const auto& replay : replays) EXPECT_EQ(replay->wrong(), 0);
  }
  EXPECT_TRUE(faulty || failed == 0) << ::testing::PrintToString(errors);
  // A fault may come after the last transfer that it could touch; otherwise everybody learns of it.
  EXPECT_TRUE(failed == 0 || failed == running) << ::testing::PrintToString(errors);
}

class NcclReplay : public ::testing::TestWithParam<unsigned> {};
INSTANTIATE_TEST_SUITE_P(Seeds, NcclReplay, ::testing::Range(0U, 10U));

TEST_P(NcclReplay, EndsWithoutHangOrViolationUnderEveryScheduleAndFault) {
  for (unsigned seed = 100 * GetParam(); seed < 100 * (GetParam() + 1) && !HasFailure(); ++seed) replay(seed);
}

}  // namespace
}  // namespace stagecraft::channel
