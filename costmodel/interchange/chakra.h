#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "costmodel/bound_plan.h"
#include "costmodel/graph.h"
#include "costmodel/timeline.h"

namespace stagecraft::interchange {

/// What a node of a Chakra trace does. The values are those of the schema's NodeType, whose one for collectives is
/// three here.
enum class ChakraKind { Compute = 4, Send = 5, Receive = 6, AllReduce = 7, ReduceScatter = 8, AllGather = 9 };

/// One node of a Chakra execution trace: an action of one rank in one step. A Reduce is one node, or more if the
/// stage is replicated and has tied parameters, and so is an Update whose replicas gather the parameters.
struct ChakraNode {
  std::uint64_t id = 0;  ///< index in its rank's trace; dependencies come earlier
  ChakraKind kind = ChakraKind::Compute;
  int step = 0;
  Action action;
  std::vector<std::uint64_t> control_dependencies;  ///< what the rank had to finish before this node
  std::vector<std::uint64_t> data_dependencies;     ///< what produced the values that this node reads
  std::int64_t start_us = 0;
  std::int64_t duration_us = 0;
  Bytes bytes;    ///< moved; for a Compute: of its stage's outputs and parameters
  int from = -1;  ///< sending rank, for Send and Receive
  int to = -1;    ///< receiving rank
  int tag = -1;   ///< unique to a message, the same at both ends
  int group = 0;  ///< of a collective: key of ChakraTrace::groups
  friend bool operator==(const ChakraNode&, const ChakraNode&) = default;
};

/// The nodes of each rank, in the order of its action list, and the ranks of each group that reduces together.
struct ChakraTrace {
  std::vector<std::vector<ChakraNode>> ranks;
  std::map<int, std::vector<int>> groups;
  friend bool operator==(const ChakraTrace&, const ChakraTrace&) = default;
};

/// The trace of `timeline`, predicted or measured, of `plan` made from `graph`. Dependencies are those of the plan,
/// not of the times: a forward reads what it receives (and the output of an earlier chunk on this rank), a send reads
/// what was computed, a backward the gradients that come back and its own forward, a reduction the backwards, an update
/// the reduction, the next step's forwards the update. Computations, reductions and updates of a rank run one after
/// another; a receive waits for the computation after which the rank posts it; a send only for its data.
/// Times are integer microseconds, rounded at both ends, so that sums do not drift.
/// Throws std::invalid_argument naming the rank, step and action for which the timeline has no span or two; also for a
/// span that is not in the plan, a time that is negative or above 10^15 us, and more messages than 31-bit ids.
[[nodiscard]] ChakraTrace chakra_trace(const Timeline& timeline, const BoundPlan& plan, const Graph& graph);
/// One rank's file: messages preceded by their length as a varint, first GlobalMetadata, then the nodes. `title` is the
/// metadata's attribute "title". Schema: mlcommons/chakra, schema/protobuf/et_def.proto of version 0.0.4. Attributes as
/// the feeders of Chakra (src/feeder) and ASTRA-sim (workload/feeder_v3) read them: is_cpu_op false, num_ops 0 (a graph
/// has times, not operations) and tensor_size of computations; comm_size, comm_src, comm_dst, comm_tag of messages;
/// comm_type, comm_size and pg_name of reductions, without involved_dim, which means all dimensions of the group. Also
/// step, stage and microbatch, for readers.
[[nodiscard]] std::string chakra_bytes(const std::vector<ChakraNode>& nodes, const std::string& title);

/// The groups as ASTRA-sim's communicator group file: {"1": [0, 1], ...}.
[[nodiscard]] std::string chakra_groups_json(const ChakraTrace& trace);

/// Writes "chakra.RANK.et" for each rank and "comm_groups.json" into `folder`, which is created if missing. Throws
/// FormatError with the path and the system's reason.
void write_chakra(const std::string& folder, const ChakraTrace& trace, const std::string& title);

}  // namespace stagecraft::interchange
