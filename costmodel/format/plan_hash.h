#pragma once

#include <cstdint>

#include "costmodel/bound_plan.h"

namespace stagecraft::format {

/// The hash of a plan, which ranks compare at the start, `verify` prints and checkpoints keep: fnv1a of the plan's
/// document without its provenance and of every action of one step; the lists of more steps follow from the same
/// plan. The same on every machine. It protects against mistakes, not against attacks. Source: draft-eastlake-fnv.
[[nodiscard]] std::uint64_t plan_hash(const BoundPlan& plan);

}  // namespace stagecraft::format
