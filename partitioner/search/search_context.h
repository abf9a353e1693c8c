#pragma once

#include <optional>

#include "costmodel/units.h"
#include "partitioner/costs/pipeline_costs.h"
#include "partitioner/search/local_search.h"
#include "partitioner/search/predicted_plans.h"
#include "partitioner/search/search_time.h"
#include "partitioner/strategy.h"

namespace stagecraft::partitioner {

/// What the parts of the exact search share.
struct SearchContext {
  const PipelineCosts& costs;
  const Constraints& constraints;
  std::optional<Bytes> limit;  ///< memory of a device
  SearchTime& time;
  PredictedPlans& plans;

  /// PipelineCosts::countable of the limit.
  [[nodiscard]] std::optional<Bytes> countable() const {
    return limit ? std::optional(costs.countable(*limit)) : std::nullopt;
  }
  /// Whether the constraints allow the split, as far as its number of stages says; none if they give replicas.
  [[nodiscard]] bool is_wanted(const Split& split) const {
    return constraints.replicas.empty() &&
           (!constraints.stages || to_int(split.replicas.size()) == *constraints.stages);
  }
  /// What the constraints let the local search change.
  [[nodiscard]] Movable movable(int devices) const {
    Movable out;
    out.stages = !constraints.stages && constraints.replicas.empty();
    out.replicas = constraints.replicas.empty();
    out.devices = devices;
    out.limit = limit;
    return out;
  }
};

}  // namespace stagecraft::partitioner
