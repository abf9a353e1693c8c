#pragma once

#include <functional>
#include <optional>

#include "costmodel/units.h"
#include "partitioner/exact/pipeline_costs.h"

namespace stagecraft::partitioner {

/// `split` after moves that each lower its PipelineCosts::lower_bound: a node to the stage before or after its own, a
/// replica more, less, or to another stage, two neighbouring stages as one, one
/// as two. Until no move helps, or `stop` says so.
/// `keep_stages` and `may_replicate` say which moves are allowed; no stage grows beyond `limit` by what is sure of its
/// memory. Equal calls give equal results if `stop` does not interfere.
[[nodiscard]] Split improved(const PipelineCosts& costs, Split split, std::optional<Bytes> limit, bool keep_stages,
                             bool may_replicate, const std::function<bool()>& stop);

}  // namespace stagecraft::partitioner
