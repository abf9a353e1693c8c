#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <memory>
#include <tuple>

#include "costmodel/bound_plan.h"
#include "costmodel/index.h"
#include "executor/run/run.h"
#include "tests/support/models/planned_models.h"

// A run follows its schedule. On local channels all ranks read one clock, so times can be compared too.

namespace stagecraft::run {
namespace {

using stagecraft::testing::cut_plan;
using stagecraft::testing::even_cuts;
using stagecraft::testing::planned_model;
using stagecraft::testing::PlannedModel;

struct Case {
  std::string schedule;
  std::vector<int> replicas;
  int microbatches = 1;
  int chunks = 1;
};

std::string text(const Case& c) {
  std::string out = c.schedule + " M=" + std::to_string(c.microbatches) + " replicas";
  for (const int r : c.replicas) out += " " + std::to_string(r);
  return out;
}

/// Every schedule with every kind of replica vector that it supports.
std::vector<Case> cases() {
  std::vector<Case> out;
  for (const char* schedule : {"gpipe", "1f1b", "pipedream", "forward"}) {
    for (const std::vector<int>& replicas :
         std::vector<std::vector<int>>{{1}, {2}, {1, 1}, {2, 1}, {1, 2}, {3, 2}, {1, 1, 1}, {2, 3, 1}}) {
      out.push_back({schedule, replicas, 6});
    }
  }
  out.push_back({"gpipe", {3, 1}, 2});
  out.push_back({"1f1b", {3, 1}, 2});
  for (const std::vector<int>& replicas : std::vector<std::vector<int>>{{1}, {1, 1}, {2, 1}, {1, 1, 1}})
    out.push_back({"pipedream-2bw", replicas, 6});
  for (const int stages : {1, 2, 3}) out.push_back({"zb-h1", std::vector<int>(to_index(stages), 1), 5});
  out.push_back({"zb-h1", {2, 1}, 5});
  out.push_back({"interleaved-1f1b", {1, 1}, 3, 2});
  out.push_back({"interleaved-1f1b", {1, 1, 1, 1}, 4, 2});
  out.push_back({"interleaved-1f1b", {1, 1, 1, 1, 1, 1}, 4, 3});
  for (const char* schedule :
       {"interleaved-1f1b", "looped-bfs", "interleaved-zb", "zb-v", "v-half", "v-min", "dualpipev"})
    out.push_back({schedule, {2, 2, 2, 2}, 8, 2});
  return out;
}

Plan plan_of(const PlannedModel& planned, const Case& c) {
  const int layers = to_int(planned.model.layers.size());
  const int stages = to_int(c.replicas.size());
  return cut_plan(planned, even_cuts(layers, stages), c.replicas, c.schedule, c.microbatches, c.chunks);
}

bool computes(const Action& a) {
  return a.kind == ActionKind::Forward || a.kind == ActionKind::Backward || a.kind == ActionKind::WeightGradient;
}

bool sends(const Action& a) { return a.kind == ActionKind::SendActivation || a.kind == ActionKind::SendGradient; }

bool receives(const Action& a) {
  return a.kind == ActionKind::ReceiveActivation || a.kind == ActionKind::ReceiveGradient;
}

std::vector<Action> only(const std::vector<Action>& actions, bool (*wanted)(const Action&)) {
  std::vector<Action> out;
  std::ranges::copy_if(actions, std::back_inserter(out), wanted);
  return out;
}

constexpr int kSteps = 3;

/// Measured actions of `rank`, in order.
std::vector<Action> measured(const Timeline& timeline, int rank) {
  std::vector<Action> out;
  for (const Span& span : timeline.spans) {
    if (span.rank == rank) out.push_back(span.action);
  }
  return out;
}

std::vector<Action> repeated(const std::vector<Action>& list, int times) {
  std::vector<Action> out;
  for (int i = 0; i < times; ++i) out.insert(out.end(), list.begin(), list.end());
  return out;
}

void expect_order(const Plan& plan, const Timeline& timeline) {
  const BoundPlan bound(plan);
  const ScheduleEntry& schedule = bound.schedule();
  const bool synchronous = !bound.asynchronous();
  const int replays = synchronous ? kSteps : 1;
  const PipelineShape shape = bound.shape(synchronous ? 1 : kSteps);
  const auto lists = bound.action_lists(shape.steps);
  int rank = 0;
  for (int position = 0; position < shape.stages / shape.chunks; ++position) {
    for (int replica = 0; replica < shape.replicas[to_index(position)]; ++replica, ++rank) {
      SCOPED_TRACE("rank " + std::to_string(rank));
      const std::vector<Action> found = measured(timeline, rank);
      EXPECT_EQ(only(found, computes),
                repeated(only(schedule.compute_actions(shape, position, replica), computes), replays));
      const std::vector<Action> list = repeated(lists[to_index(rank)], replays);
      EXPECT_EQ(only(found, sends), only(list, sends));
      // Receives by edge: across edges, the order of posting differs from that of waiting.
      std::map<std::tuple<ActionKind, int, int, int>, std::vector<Action>> waits, posted;
      const auto edge = [&](const Action& a) {
        const auto replicas = to_int(plan.stages[to_index(a.peer)].devices.size());
        return std::tuple(a.kind, a.stage, a.peer, a.microbatch % replicas);
      };
      const auto here = [&](const Action& a) { return shape.chunks > 1 && bound.runner(a.peer, a.microbatch) == rank; };
      for (const Action& a : only(found, receives)) {
        if (!here(a)) waits[edge(a)].push_back(a);
      }
      for (const Action& a : only(list, receives)) posted[edge(a)].push_back(a);
      EXPECT_EQ(waits, posted);
    }
  }
  EXPECT_EQ(rank, timeline.ranks);
}

/// Spans by step, action, stage and microbatch; step -1 if microbatch numbers continue across steps.
using SpanOfAction = std::map<std::tuple<int, ActionKind, int, int>, Span>;

void expect_dependencies(const Plan& plan, const Timeline& timeline) {
  const bool synchronous = schedule_of(plan).weights == Weights::Flushed;
  SpanOfAction work;
  std::map<int, Seconds> last_end;  // by rank
  for (const Span& span : timeline.spans) {
    EXPECT_LE(span.start, span.end);
    if (last_end.contains(span.rank)) {
      EXPECT_LE(last_end[span.rank], span.start) << "rank " << span.rank << " does two things at once";
    }
    last_end[span.rank] = span.end;
    if (!computes(span.action)) continue;
    const auto [it, fresh] = work.emplace(
        std::tuple(synchronous ? span.step : -1, span.action.kind, span.action.stage, span.action.microbatch), span);
    EXPECT_TRUE(fresh) << "twice: " << action_text(span.action);
  }
  const auto after = [&](const Span& later, ActionKind kind, int stage, int microbatch) {
    const auto it = work.find({synchronous ? later.step : -1, kind, stage, microbatch});
    const Action needed{kind, stage, microbatch, -1};
    ASSERT_NE(it, work.end()) << action_text(needed) << " was never done";
    EXPECT_LE(it->second.end, later.start) << action_text(later.action) << " before the end of " << action_text(needed);
  };
  std::size_t transfers = 0;
  for (const Span& span : timeline.spans) {
    const Action& a = span.action;
    switch (a.kind) {
      case ActionKind::Forward:
        for (const Boundary& b : plan.boundaries) {
          if (b.destination == a.stage) after(span, ActionKind::Forward, b.source, a.microbatch);
        }
        break;
      case ActionKind::Backward:
        after(span, ActionKind::Forward, a.stage, a.microbatch);
        for (const Boundary& b : plan.boundaries) {
          if (b.source == a.stage && has_gradient(b)) after(span, ActionKind::Backward, b.destination, a.microbatch);
        }
        break;
      case ActionKind::WeightGradient:
        after(span, ActionKind::Backward, a.stage, a.microbatch);
        break;
      case ActionKind::SendActivation:
        ++transfers;
        after(span, ActionKind::Forward, a.stage, a.microbatch);
        break;
      case ActionKind::SendGradient:
        ++transfers;
        after(span, ActionKind::Backward, a.stage, a.microbatch);
        break;
      case ActionKind::Reduce:
        // A Reduce covers the gradients of all replicas, so no replica may start computing one of them after the Reduce
        // ends.
        for (const auto& [key, other] : work) {
          if (!synchronous || other.step != span.step || other.action.stage != a.stage) continue;
          EXPECT_LE(other.start, span.end)
              << action_text(a) << " of rank " << span.rank << " lacks " << action_text(other.action);
        }
        break;
      default:
        break;
    }
  }
  EXPECT_EQ(transfers > 0, timeline.ranks > 1 && plan.stages.size() > 1);
}

TEST(RunOrder, IsTheSchedulesOnEveryRankAndKeepsEveryDependencyInTime) {
  const PlannedModel planned = planned_model("mlp", {{"inputs", "8"}, {"width", "8"}, {"layers", "5"}}, 2);
  for (const Case& c : cases()) {
    SCOPED_TRACE(text(c));
    const Plan plan = plan_of(planned, c);
    RunOptions options;
    options.steps = kSteps;
    const RunResult result = run_local(plan, planned.model, *planned.data, options, std::chrono::milliseconds(60000));
    expect_order(plan, result.measurement.timeline);
    expect_dependencies(plan, result.measurement.timeline);
    EXPECT_EQ(result.measurement.timeline.steps.size(), to_index(kSteps));
    EXPECT_EQ(result.measurement.timeline.memory.size(), to_index(result.measurement.timeline.ranks));
  }
}

}  // namespace
}  // namespace stagecraft::run
