#pragma once

#include <optional>
#include <string>
#include <vector>

#include "costmodel/format/results/plan_list_json.h"
#include "costmodel/graph.h"
#include "costmodel/text/table.h"
#include "costmodel/topology.h"
#include "partitioner/choices/choice.h"
#include "partitioner/choices/gather.h"
#include "partitioner/strategy.h"

namespace stagecraft::partitioner {

/// Where the plan's step goes, see explain(); absent if its action lists deadlock.
[[nodiscard]] std::optional<StepParts> step_parts(const Graph& graph, const Topology& topology, const Plan& plan);

/// One question: what to plan, and which plan is the best.
struct Question {
  const Graph& graph;
  const Topology& topology;
  const CostModel& costs;
  Constraints constraints;
  GatherOptions options;
  Goal goal;
};

/// What each constraint of a question costs: answers the question without the memory limit, --stages, --replicas,
/// --chunks and the required throughput, one at a time, and with twice the groups of the outermost level. `best` is the
/// best plan of the question itself.
[[nodiscard]] std::vector<format::Relaxation> relaxations(const Question& question, const RankedPlan& best);

/// The smallest changes that would make a plan fit in memory, among the strategies' candidates. Each one was tried; the
/// last figure is the result. At most one of each kind: more memory per device, recomputation (the way with the
/// shortest step), more stages than --stages, more groups of the outermost level. Empty if none helps. Precondition:
/// the question has a memory limit and no plan that fits.
[[nodiscard]] std::vector<std::string> smallest_changes(const Question& question);

/// Why the first plan is better than the others, and which constraints bind: a table of the parts of their steps, and
/// sentences. `mark` goes before each figure. Plans without parts are left out.
[[nodiscard]] std::string reasons_text(const format::PlanList& list, const std::string& mark, const Screen& screen);

}  // namespace stagecraft::partitioner
