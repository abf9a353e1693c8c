#pragma once

#include <functional>
#include <optional>
#include <string>
#include <variant>
#include <vector>

#include "costmodel/errors.h"
#include "costmodel/graph.h"
#include "costmodel/plan.h"
#include "costmodel/topology.h"
#include "costmodel/units.h"

namespace stagecraft {

/// What a plan must keep to. The list strategies (uniform, parameters, type, profile) know `stages` and nothing of
/// memory; pipedream finds its own number of stages and refuses `stages`.
struct Constraints {
  std::optional<int> stages;          ///< absent: as many as `replicas`, or one a device
  std::vector<int> replicas;          ///< of each stage, for the list strategies; empty: 1 each
  std::optional<Bytes> memory_limit;  ///< on one device
};

/// The switches of PipeDream's optimizer.
struct PipedreamOptions {
  bool straight_pipeline = false;      ///< no replicas; as many stages as devices
  bool use_memory_constraint = false;  ///< Constraints::memory_limit switches it on as well, and is then the limit
  Bytes memory_limit{16'000'000'000};
  bool use_fewer_machines = false;  ///< devices may stay idle
  /// Transfers are divided by it: 1 is uncompressed. Absent: transfers cost nothing, as PipeDream has it.
  std::optional<double> activation_compression_ratio;
};

struct StrategyOptions {
  Constraints constraints;
  /// Of one step, where each step ends before the next: replicas beyond it have nothing to do, so that the list
  /// strategies and given splits count only so many. Absent: steps run into each other.
  std::optional<int> microbatches;
  PipedreamOptions pipedream;
  std::string regex;  ///< of the strategy type:REGEX; `partition` fills it in from the name
  std::function<void(double done)> progress = {};  ///< PredictOptions::progress where plans are predicted
};

/// One answer of a strategy.
struct Candidate {
  Partition partition;
  std::vector<std::vector<int>> devices;  ///< of each stage, one a replica; empty: in order 0.. stage by stage
  std::vector<int> warmups;               ///< Plan::warmups; empty: by warmup_counts
  std::optional<Seconds> steady_state;    ///< slowest stage's time per microbatch, as the strategy itself reckons it
  friend bool operator==(const Candidate&, const Candidate&) = default;
};

/// Candidates, best first and never empty, or why there is none.
using StrategyResult = std::variant<std::vector<Candidate>, Infeasible>;

/// A way to part a graph into stages. `partition` expects a graph and a topology that validate() accepts. Its
/// partitions have no empty stage, no edge to an earlier stage, no more replicas than devices; equal calls give equal
/// results. It throws std::invalid_argument for options that it cannot take.
struct Strategy {
  std::string name;
  std::string help;  ///< one line
  std::function<StrategyResult(const Graph&, const Topology&, const StrategyOptions&)> partition;
};

/// All strategies: uniform, parameters, type:REGEX, profile, pipedream.
[[nodiscard]] const std::vector<Strategy>& strategies();

/// The one called `name`; any name that begins with "type:" is that of type:REGEX.
/// Throws std::invalid_argument listing the names.
[[nodiscard]] const Strategy& strategy_by_name(const std::string& name);

/// What the strategy called `name` makes of `graph`; the text behind "type:" becomes StrategyOptions::regex.
/// Throws std::invalid_argument for an unknown name, listing the names, and for options the strategy cannot take.
[[nodiscard]] StrategyResult partition(const std::string& name, const Graph& graph, const Topology& topology,
                                       StrategyOptions options = {});

}  // namespace stagecraft
