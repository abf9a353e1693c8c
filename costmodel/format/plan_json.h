#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "costmodel/bound_plan.h"
#include "costmodel/format/document_schema.h"
#include "costmodel/plan.h"
#include "costmodel/schedule.h"

namespace stagecraft::format {

// See graph_json.h for the rules of all readers and writers.

[[nodiscard]] Plan parse_plan(const std::string& text, const std::string& file);
[[nodiscard]] Plan read_plan(const std::string& path);
[[nodiscard]] std::string plan_json(const Plan& plan);
[[nodiscard]] DocumentSchema plan_schema();

// One rank's actions as a line of torch.distributed.pipelining's schedules (torch 2.11, _load_csv and _dump_csv,
// "compute_only" and "compute_comms"): cells separated by commas, empty for an idle slot. Plans contain such lines.
// Cells:
//   1F0, 1B0, 1I0, 1W0        stage 1, microbatch 0: forward, backward, or its two halves, inputs and weights;
//   1SEND_F0, 1RECV_F0        the activation to stage 2, from stage 0;  1SEND_B0, 1RECV_B0: the gradient to 0, from 2;
//   1REDUCE_GRAD              the stage's gradients are summed over its replicas;
//   1UNSHARD, 1RESHARD        read and skipped, no parameters are sharded here;
//   (1F2;1B0)OVERLAP_F_B      read as its parts, one after the other.

/// The actions of a line without its line end. I is read as Backward, and each I needs its W on the same line. Throws
/// std::invalid_argument "cell M: found, expected" for anything else, a stage above 2^24, a microbatch from 2^20, and a
/// half of a backward without its other half.
[[nodiscard]] std::vector<Action> parse_actions_row(const std::string& row);
/// The text, which reads back to the same. Throws std::invalid_argument for an Update, a transfer between stages that
/// are not adjacent, and a WeightGradient without its Backward.
[[nodiscard]] std::string actions_row(const std::vector<Action>& list);

/// The hash of a plan, which ranks compare at the start, `verify` prints and checkpoints keep: fnv1a of the plan's
/// document without its provenance and of every action of one step; the lists of more steps follow from the same
/// plan. The same on every machine. It protects against mistakes, not against attacks. Source: draft-eastlake-fnv.
[[nodiscard]] std::uint64_t plan_hash(const BoundPlan& plan);

}  // namespace stagecraft::format
