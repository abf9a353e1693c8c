#include "partitioner/command/given_inputs.h"

#include <fmt/format.h>

#include <stdexcept>
#include <string>
#include <utility>

#include "costmodel/command/tool.h"
#include "costmodel/format/files/files.h"
#include "costmodel/index.h"
#include "costmodel/interchange/actions_csv.h"
#include "costmodel/interchange/plan_formats.h"
#include "costmodel/text/units_text.h"
#include "partitioner/candidate.h"
#include "partitioner/strategies/list_strategies.h"
#include "partitioner/strategies/strategies.h"

namespace stagecraft::partitioner {
namespace {

/// Plan::strategy of a split by hand.
constexpr const char* kSplitAt = "split-at";

/// Takes schedule, stages, replicas and microbatches from lists that came without a plan.
void take_lists(PlanRequest& request, const Plan& shape) {
  if (request.constraints.chunks && *request.constraints.chunks != shape.chunks) {
    throw std::invalid_argument(fmt::format("found {} per rank, --chunks is {}", count_text(shape.chunks, "stage"),
                                            *request.constraints.chunks));
  }
  if (request.microbatches_given && request.constraints.plan.microbatches != shape.microbatches) {
    throw std::invalid_argument(fmt::format("found {}, --microbatches is {}",
                                            count_text(shape.microbatches, "microbatch", "microbatches"),
                                            request.constraints.plan.microbatches));
  }
  if (!request.split_at.empty() && request.split_at.size() + 1 != shape.stages.size()) {
    throw std::invalid_argument(fmt::format("found {}, --split-at gives {}", count_text(shape.stages.size(), "stage"),
                                            request.split_at.size() + 1));
  }
  request.constraints.plan.microbatches = shape.microbatches;
  request.constraints.plan.schedule = shape.schedule;
  request.constraints.plan.listed = shape.listed;
  Constraints& constraints = request.constraints;
  constraints.stages = to_int(shape.stages.size());
  constraints.chunks = shape.chunks;
  constraints.replicas = replicas_of(shape);
  if (request.strategy == kDefaultStrategy) request.strategy = kProfileStrategy;
}

}  // namespace

void take_csv(PlanRequest& request) {
  const std::string path = lists_file(request);
  if (path.empty()) return;
  const auto lists = interchange::parse_actions_csv(format::read_text(path), path);
  within(path, [&] { take_lists(request, interchange::plan_of_lists(lists)); });
}

void take_batch(PlanRequest& request, const Graph& graph) {
  if (!request.choice.global_batch) return;
  if (!request.constraints.plan.listed.empty()) {
    throw std::invalid_argument("--global-batch: the action lists give the number of microbatches");
  }
  request.constraints.plan.microbatches =
      within(request.graph, [&] { return microbatches_of(*request.choice.global_batch, graph); });
}

std::optional<Candidate> given_stages(PlanRequest& request, const Graph& graph) {
  std::optional<Candidate> out;
  if (!request.from.empty()) {
    const std::string& path = request.from[1];
    const interchange::PlanFormat& format = interchange::plan_format(request.from[0]);
    interchange::ForeignPlan plan = format.read({format::read_text(path), path}, graph);
    within(path, [&] {
      if (plan.lists) take_lists(request, *plan.lists);
      if (plan.partition) {
        if (!request.split_at.empty()) throw std::invalid_argument("gives the stages; remove --split-at");
        request.strategy = format.name;
        out = given_candidate(graph, std::move(*plan.partition), std::move(plan.devices), std::move(plan.warmups),
                              request.constraints.replicas, microbatches_of_a_step(request.constraints.plan),
                              request.constraints.chunks.value_or(1));
      }
    });
  }
  if (!request.split_at.empty()) {
    request.strategy = kSplitAt;
    out = within("--split-at", [&] {
      return split_candidate(graph, request.split_at, request.constraints.replicas,
                             microbatches_of_a_step(request.constraints.plan), request.constraints.chunks.value_or(1));
    });
  }
  return out;
}

}  // namespace stagecraft::partitioner
