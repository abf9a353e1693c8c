#include "partitioner/proof.h"

#include <utility>
#include <variant>

#include "costmodel/bound_plan.h"
#include "costmodel/prediction/verify.h"

namespace stagecraft::partitioner {

std::optional<Infeasible> refutation(const RankedPlan& ranked, const Graph& graph, const Topology& topology) {
  const BoundPlan bound(ranked.plan);
  VerifyOptions options;
  options.steps = bound.step_window().steps;
  const auto lists = bound.action_lists(options.steps);
  auto proof = ranked.fits ? verify(bound, lists, graph, topology, options) : verify(bound, lists, options);
  if (auto* infeasible = std::get_if<Infeasible>(&proof)) return std::move(*infeasible);
  return std::nullopt;
}

void check_proved(const RankedPlan& ranked, const Graph& graph, const Topology& topology, const std::string& place) {
  if (const auto refuted = refutation(ranked, graph, topology))
    throw NoAnswerError(place + ": the plan is not proved: ", *refuted);
}

}  // namespace stagecraft::partitioner
