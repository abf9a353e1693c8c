#pragma once

#include <functional>
#include <map>
#include <optional>
#include <string>
#include <variant>
#include <vector>

#include "costmodel/errors.h"
#include "costmodel/graph.h"
#include "costmodel/plan.h"
#include "costmodel/topology.h"
#include "costmodel/units.h"
#include "partitioner/cost_model.h"

namespace stagecraft::partitioner {

/// The value of a strategy's own option: true of a flag, a number above 0, bytes, or a text.
using OptionValue = std::variant<bool, double, Bytes, std::string>;

/// Values by the first of an option's names.
using OptionValues = std::map<std::string, OptionValue>;

enum class OptionKind { Flag, Positive, Bytes };

/// An option that one strategy has and no other.
struct Option {
  std::vector<std::string> names;  ///< without dashes, the first is that of its value; a letter is a short option
  OptionKind kind = OptionKind::Flag;
  std::string help;
};

/// What every plan must keep to.
struct Constraints {
  std::optional<int> stages;          ///< absent: the strategy decides
  std::vector<int> replicas;          ///< of each stage; empty: the strategy decides
  std::optional<Bytes> memory_limit;  ///< on one device, beside the topology's own
  PlanSettings plan;                  ///< schedule, microbatches and the like; Plan::strategy is the strategy's own
  OptionValues options;               ///< of the strategy itself, see Strategy::options
};

/// A plan with what it would do.
struct RankedPlan {
  std::string origin;  ///< Plan::strategy: the strategy and what was asked of it, "profile, 2 stages"
  Plan plan;
  Prediction prediction;
  bool fits = true;      ///< within the memory limit, and the device's memory if the topology states one
  bool endless = false;  ///< Plan::steady_state is of a stream of microbatches without end
};

/// Plans that were not ranked for one reason.
struct Skipped {
  std::string reason;  ///< of the first
  int count = 0;       ///< reasons that differ in numbers alone are one
};

struct Ranking {
  std::vector<RankedPlan> plans;  ///< never empty, best first
  std::vector<Skipped> skipped;   ///< they do not suit the schedule, the number of microbatches or the constraints
  int slower = 0;                 ///< not simulated: their compute alone takes longer than the best step
};

/// Plans, best first, or why there is none.
using StrategyResult = std::variant<Ranking, Infeasible>;

/// A way to turn a graph and a topology into plans. `plan` expects a graph and a topology that validate() accepts; its
/// plans are valid for them and keep to the constraints, and equal calls give equal results. It throws
/// std::invalid_argument for constraints and options that it cannot take.
struct Strategy {
  std::string name;     ///< "NAME:ARGUMENT": what people write behind the colon is the value of the option ARGUMENT
  std::string help;     ///< one line
  std::string example;  ///< a name that people can give; empty: `name`
  std::function<StrategyResult(const Graph&, const Topology&, const CostModel&, const Constraints&)> plan;
  /// What `plan` minimises, in a unit of its own, so that its result can be held against every other plan; absent for a
  /// plan that it does not consider.
  std::function<std::optional<double>(const Graph&, const Topology&, const CostModel&, const Constraints&, const Plan&)>
      objective;
  bool exact = false;           ///< no plan that it considers has a smaller objective than its first
  bool compares = false;        ///< its ranking shows how others compare with the first
  bool decides_stages = false;  ///< takes no Constraints::stages
  bool has_memory_rule =
      false;  ///< its own rule decides what fits, so that the cost model may find that its plan does not
  std::string options_title = {};  ///< whose options these are, for people
  std::vector<Option> options = {};
  /// What people should know before they trust its plans with these options; empty for nothing.
  std::function<std::string(const OptionValues&)> caveat = {};
};

/// All strategies.
[[nodiscard]] const std::vector<Strategy>& strategies();

/// The strategy that is taken where people name none.
inline constexpr const char* kDefaultStrategy = "auto";

/// The one called `name`; one that is called NAME:ARGUMENT by any name that begins with "NAME:".
/// Throws std::invalid_argument listing the names.
[[nodiscard]] const Strategy& strategy_by_name(const std::string& name);

/// The options that `name` itself says: what follows the colon.
[[nodiscard]] OptionValues options_of_name(const std::string& name);

/// The plans of the strategy called `name`, whose options are those that the name says and Constraints::options.
/// Throws std::invalid_argument for an unknown name, listing the names, and for what the strategy cannot take.
[[nodiscard]] StrategyResult plan_with(const std::string& name, const Graph& graph, const Topology& topology,
                                       const CostModel& costs, Constraints constraints = {});

/// The value of an option, absent where `options` has none. T is one of OptionValue's types.
template <class T>
[[nodiscard]] std::optional<T> option(const OptionValues& options, const std::string& name) {
  const auto found = options.find(name);
  if (found == options.end()) return std::nullopt;
  return std::get<T>(found->second);
}

}  // namespace stagecraft::partitioner
