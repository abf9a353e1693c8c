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

/// The value of a strategy's own option: true for a flag, a number above 0, bytes, or a string.
using OptionValue = std::variant<bool, double, Bytes, std::string>;

/// Values by the first name of an option.
using OptionValues = std::map<std::string, OptionValue>;

enum class OptionKind { Flag, Positive, Bytes };

/// An option of a single strategy.
struct Option {
  std::vector<std::string> names;  ///< without dashes; the first is the key of its value; a single letter is a short
                                   ///< option
  OptionKind kind = OptionKind::Flag;
  std::string help;
};

/// Constraints on every plan.
struct Constraints {
  std::optional<int> stages;          ///< absent: the strategy decides
  std::optional<int> chunks;          ///< stages per device; absent: 1, or what a strategy that compares finds best
  std::vector<int> replicas;          ///< for each stage, or one number for all; empty: the strategy decides
  std::optional<Bytes> memory_limit;  ///< per device, besides the topology's own
  PlanSettings plan;                  ///< schedule, microbatches and the like; its strategy and chunks are ignored
  OptionValues options;               ///< options of the strategy itself, see Strategy::options
  int wanted = 1;                     ///< how many of the shortest plans a strategy that compares all should find
};

/// A plan and its prediction.
struct RankedPlan {
  std::string origin;  ///< Plan::strategy: the strategy and the request, "profile, 2 stages"
  Plan plan;
  Prediction prediction;
  bool fits = true;      ///< within the memory limit, and the device's memory if the topology gives one
  bool endless = false;  ///< Plan::steady_state is for an endless stream of microbatches
};

/// Plans that were skipped for one reason.
struct Skipped {
  std::string reason;  ///< the first plan's
  int count = 0;       ///< reasons that differ only in numbers are merged
};

struct Ranking {
  std::vector<RankedPlan> plans;  ///< never empty, best first
  std::vector<Skipped> skipped;   ///< not possible with the schedule, the number of microbatches or the constraints
  int slower = 0;                 ///< not simulated: their compute time alone exceeds the best step
  /// No plan that the strategy considers has a shorter predicted step; the first plan's own if that is the best.
  /// Absent: the strategy does not know.
  std::optional<Seconds> lower_bound = {};
  /// Parts of the search that its time limit ended.
  std::vector<std::string> cut_off = {};
  /// No plan that the strategy considers and that is not among these has a shorter predicted step. Absent likewise.
  std::optional<Seconds> others_lower_bound = {};
};

/// Plans, best first, or why there is none.
using StrategyResult = std::variant<Ranking, Infeasible>;

/// The least memory of a device; absent without a plan.
using LeastNeed =
    std::function<std::optional<Bytes>(const Graph&, const Topology&, const CostModel&, const Constraints&)>;

/// A way to turn a graph and a topology into plans. `plan` expects a graph and a topology that validate() accepts; its
/// plans are valid for them and meet the constraints, and equal calls give equal results unless a limit on its time
/// ends a search. It throws std::invalid_argument for constraints and options that it does not support.
struct Strategy {
  std::string name;     ///< "NAME:ARGUMENT": the text after the colon is the value of the option ARGUMENT
  std::string help;     ///< one line
  std::string example;  ///< a name that users can type; empty: `name`
  std::function<StrategyResult(const Graph&, const Topology&, const CostModel&, const Constraints&)> plan;
  /// What `plan` minimises, in the strategy's own unit, to compare its result with any other plan; absent for a plan
  /// that it does not consider.
  std::function<std::optional<double>(const Graph&, const Topology&, const CostModel&, const Constraints&, const Plan&)>
      objective;
  /// The least memory of a device that a plan of the strategy was found to need, whatever the limit; absent if it has
  /// no plan. Unset: its plan is the one to look at.
  LeastNeed least_need = nullptr;
  bool exact = false;              ///< no plan that it considers has a smaller objective than its first
  bool compares = false;           ///< its ranking shows how others compare with the first
  bool takes_hand = false;         ///< its plans may have layers where the user wants them: --pin, --no-cut-in
  bool in_auto = false;            ///< `auto` compares its plans
  bool decides_stages = false;     ///< rejects Constraints::stages
  bool has_memory_rule = false;    ///< its own rule decides what fits; by the cost model its plan may not fit
  std::string options_title = {};  ///< owner of these options, for messages
  std::vector<Option> options = {};
  /// A caution about its plans with these options; empty if none.
  std::function<std::string(const OptionValues&)> caveat = {};
};

/// The option of strategies that search: for how many seconds. Whatever else searches takes it too.
inline constexpr const char* kTimeLimit = "time-limit";
/// How long they search without it.
inline constexpr Seconds kDefaultTimeLimit{3};

/// How long a search with these options may take.
[[nodiscard]] Seconds time_limit(const OptionValues& options);

/// The most stages per device that strategies try by themselves.
inline constexpr int kMostChunks = 8;

/// The schedule of several stages on a rank that gathers each of them at most twice a step, where replicas divide the
/// parameters: others gather them again and again as microbatches pass.
inline constexpr const char* kSeldomGathers = "looped-bfs";
/// Whether dividing the optimizer's state can save memory with these settings, which do not divide it.
[[nodiscard]] bool may_shard(const Graph& graph, const PlanSettings& settings);

/// The numbers of stages per device that strategies try: Constraints::chunks; else 2 if the schedule runs no others, or
/// 1 and, if it can run several, 2, 4 and 8. Strategies that do not compare plans take the first.
[[nodiscard]] std::vector<int> chunk_counts(const Constraints& constraints);

/// Why the topology has too few devices for stages with `chunks` of them per device and these replicas, if not empty;
/// absent if it has enough. Precondition: `chunks` divides `stages`, and `replicas` has one number per stage.
[[nodiscard]] std::optional<Infeasible> too_few_devices(const Topology& topology, int stages, int chunks,
                                                        const std::vector<int>& replicas);

/// The value of an option, absent if `options` does not have it. T is one of OptionValue's types.
template <class T>
[[nodiscard]] std::optional<T> option(const OptionValues& options, const std::string& name) {
  const auto found = options.find(name);
  if (found == options.end()) return std::nullopt;
  return std::get<T>(found->second);
}

}  // namespace stagecraft::partitioner
