#pragma once

#include <cstddef>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "costmodel/bound_plan.h"
#include "costmodel/errors.h"
#include "costmodel/graph.h"
#include "costmodel/units.h"

// Which parameters a plan has, where they live, and who sums their gradients: cost, memory, proofs, workers and
// exporters read it here.

namespace stagecraft {

/// A parameter that a stage holds.
struct HeldParameter {
  std::string_view name;  ///< in the graph, plan or model; empty: all of the layer's that are not shared nor named
  std::size_t layer = 0;  ///< place among the stage's layers
  Bytes bytes;
  friend bool operator==(const HeldParameter&, const HeldParameter&) = default;
};

/// By stage, by its layers in order; a parameter that several layers of a stage share is there for each. Valid as long
/// as what it was made from.
using HeldParameters = std::vector<std::vector<HeldParameter>>;

/// As the graph has them. Precondition: the plan is valid for it.
[[nodiscard]] HeldParameters held_parameters(const Graph& graph, const Plan& plan);
/// As the plan lists them; absent if it does not, see lists_parameters.
[[nodiscard]] std::optional<HeldParameters> held_parameters(const Plan& plan);

/// Consecutive values of a parameter, in the order of its memory.
struct ValueRange {
  std::int64_t first = 0;
  std::int64_t count = 0;
  friend bool operator==(const ValueRange&, const ValueRange&) = default;
};

/// Values of a parameter whose state a rank keeps and writes to checkpoints.
struct OwnedRange {
  int rank = 0;
  ValueRange values;
  friend bool operator==(const OwnedRange&, const OwnedRange&) = default;
};

/// Where a parameter lives.
struct ParameterHome {
  int stage = 0;                  ///< the first that holds it
  int owner = 0;                  ///< that stage's replica 0: the rank that writes it to checkpoints, without parts
  std::vector<int> holders;       ///< all replicas of the stages that hold it: ranks, ascending
  std::vector<OwnedRange> parts;  ///< of the parts of its sum, ascending: each value once; empty: `owner` keeps all
};

/// A sum of gradients over ranks: one all-reduce; with parts one reduce-scatter, and after the update one all-gather of
/// the parameters.
struct GradientSum {
  std::vector<int> ranks;               ///< ascending
  Bytes bytes;                          ///< of the gradients, at each rank
  std::optional<int> tied;              ///< index in BoundPlan::tied of the parameter; absent: the stage shares none
  std::vector<std::size_t> parameters;  ///< places among the stage's held parameters, ascending
  std::size_t layer = 0;                ///< place among the stage's layers: its backward completes the gradients
  /// With StateSharding::Optimizer, by place in `ranks`: the bytes that each updates, of the gradients of `parameters`
  /// one after the other. Empty: all ranks update all.
  std::vector<Bytes> parts = {};
  StateTypes types = {};  ///< Plan::types
  friend bool operator==(const GradientSum&, const GradientSum&) = default;
};

/// By stage, the sums of its Reduce in order: over its replicas, if it has several, those of all parameters that it
/// does not share (all in one, or bucket by bucket, see Plan::gradient_bucket_bytes), then that of each parameter in
/// BoundPlan::shared, over all holders.
using GradientSums = std::vector<std::vector<GradientSum>>;
[[nodiscard]] GradientSums gradient_sums(const BoundPlan& plan, const HeldParameters& held);
/// By name, the home of each named parameter. `sums`: of these parameters, or none of tensors that nobody trains.
[[nodiscard]] std::map<std::string, ParameterHome> parameter_homes(const BoundPlan& plan, const HeldParameters& held,
                                                                   const GradientSums& sums);

/// The values of tensors of so many `values`, one after the other, divided among `members` as equally as cuts allow
/// that lie between two tensors or at a multiple of kOwnedBlock values from the beginning of one: so the kernels that
/// update a range round as for the whole tensor, and a block's sum of squares has one owner. How many values each
/// member has.
inline constexpr std::int64_t kOwnedBlock = 1024;
[[nodiscard]] std::vector<std::int64_t> owned_values(std::span<const std::int64_t> values, std::size_t members);

/// What member `place` of a sum with parts updates of each of the sum's parameters, which have so many `values`: one
/// range for each of them, of no values where it owns none. The same as `parts`.
[[nodiscard]] std::vector<ValueRange> owned_ranges(std::span<const std::int64_t> values,
                                                   std::span<const std::int64_t> owned, std::size_t place);

/// How many values each of the sum's parameters has, which are among the stage's `held`; each of its parts, if it has
/// any; and all of its gradients.
[[nodiscard]] std::vector<std::int64_t> parameter_values(const GradientSum& sum,
                                                         const std::vector<HeldParameter>& held);
[[nodiscard]] std::vector<std::int64_t> part_values(const GradientSum& sum);
[[nodiscard]] std::int64_t gradient_values(const GradientSum& sum);
/// The bytes of its parameters, which an all-gather after the update moves.
[[nodiscard]] Bytes gathered_bytes(const GradientSum& sum);

/// The bytes of a stage's parameters that one of its ranks updates: all `bytes` that the stage holds, unless its `sums`
/// have parts. And the most that any of its `ranks` updates.
[[nodiscard]] Bytes updated_bytes(const std::vector<GradientSum>& sums, int rank, Bytes bytes);
[[nodiscard]] Bytes most_updated_bytes(const std::vector<GradientSum>& sums, const std::vector<int>& ranks,
                                       Bytes bytes);

/// Those of the graph's parameters. Precondition: the plan is valid for the graph.
[[nodiscard]] GradientSums gradient_sums(const Graph& graph, const BoundPlan& plan);

/// By entry of a rank's list, the sums that it takes part in there: at a Reduce, those of the stage over its replicas;
/// at the last Reduce of a synchronous schedule, also those of all parameters that the rank shares, in the order of
/// BoundPlan::tied. They refer to `sums`.
[[nodiscard]] std::vector<std::vector<const GradientSum*>> sums_by_entry(const BoundPlan& plan,
                                                                         const GradientSums& sums, int rank,
                                                                         const std::vector<Action>& list);

/// What is wrong with `sums` if each gradient is to be summed over exactly the ranks that hold its parameter, once, and
/// if all of them are to begin their sums in one order while they replay `lists`. Absent if nothing is.
[[nodiscard]] std::optional<std::string> wrong_sum(const BoundPlan& plan, const HeldParameters& held,
                                                   const GradientSums& sums,
                                                   const std::vector<std::vector<Action>>& lists);

/// Bytes of each parameter of the layer that no other layer shares, as held_parameters divides them; and of all.
[[nodiscard]] std::vector<Bytes> untied_parameters(const Layer& layer);
[[nodiscard]] Bytes untied_bytes(const Layer& layer);

/// Gradients that replicas sum while a backward goes on.
struct FilledBucket {
  Bytes bytes;
  std::size_t first = 0;  ///< of the gradients in it; the backward that completes this one completes the bucket
};

/// The buckets of gradients with these bytes. A backward completes them from the last to the first: a bucket takes
/// gradients until it has `full` bytes; absent: all. Gradients without bytes complete nothing.
[[nodiscard]] std::vector<FilledBucket> fill_buckets(std::span<const Bytes> gradients, std::optional<Bytes> full);

}  // namespace stagecraft
