#pragma once

#include <cstdint>

#include "costmodel/bound_plan.h"

namespace stagecraft {

/// A number for a plan, which ranks compare at the start, `verify` prints and checkpoints keep: FNV-1a, 64 bits, of the
/// plan's document without its provenance and of every action of one step; the lists of more steps follow from the same
/// plan. The same on every machine. It guards against accidents, not against intent. Source: draft-eastlake-fnv.
[[nodiscard]] std::uint64_t plan_hash(const BoundPlan& plan);

}  // namespace stagecraft
