#pragma once

#include <functional>
#include <optional>
#include <string>
#include <variant>
#include <vector>

#include "costmodel/accuracy/calibrate.h"
#include "costmodel/bound_plan.h"
#include "costmodel/errors.h"
#include "costmodel/graph.h"
#include "costmodel/prediction/predict.h"
#include "costmodel/simulation/critical_path.h"
#include "costmodel/text/table.h"
#include "costmodel/topology.h"
#include "costmodel/units.h"

namespace stagecraft {

/// Where a step's time goes. The parts add up to the step.
struct StepParts {
  Seconds compute = {};  ///< the layers' own forwards and backwards
  Seconds host = {};     ///< what host time per action, and ranks that share a host, add to computations and updates
  Seconds update = {};   ///< the optimizer's own time
  Seconds reduce = {};   ///< gradient all-reduce that no backward hides
  Seconds exposed_transfer = {};  ///< idle while a needed message was on the link
  Seconds bubble = {};            ///< idle otherwise
  friend bool operator==(const StepParts&, const StepParts&) = default;
};

/// The sum of the parts.
[[nodiscard]] Seconds total(const StepParts& parts);
/// The time without computations, updates and reductions: Prediction::bubble of the step.
[[nodiscard]] Seconds idle_time(const StepParts& parts);

/// The parts of a predicted step, as a mean over all ranks. A prediction does not tell host time apart: `host` is 0,
/// and what it would be is in `compute` and `update`.
[[nodiscard]] StepParts mean_parts(const Prediction& prediction);

/// One pipeline position: the stages that share ranks (one, unless chunks > 1), as a mean over these ranks.
struct PositionParts {
  std::vector<int> stages;
  int ranks = 1;
  StepParts parts;
  /// The smallest slack of its computations and updates: by how much one of them alone can be late without lengthening
  /// the step. 0 on the critical path, absent if there is no path.
  std::optional<Seconds> least_slack;
  friend bool operator==(const PositionParts&, const PositionParts&) = default;
};

/// Time on the critical path of one stage's actions of one kind; a message counts for its sender.
struct PathShare {
  int stage = 0;
  ActionKind kind = ActionKind::Forward;
  int count = 0;
  Seconds time;
  friend bool operator==(const PathShare&, const PathShare&) = default;
};

/// One layer moved across a stage boundary.
struct LayerMove {
  std::string layer;
  int from = 0;
  int to = 0;
  Seconds step;  ///< predicted after the move
  friend bool operator==(const LayerMove&, const LayerMove&) = default;
};

/// Peak memory of a rank and the memory of its device.
struct MemoryHeadroom {
  int rank = 0;
  Bytes peak;
  std::optional<Bytes> room;  ///< the device's memory minus the peak, negative if it does not fit; absent: no limit
  friend bool operator==(const MemoryHeadroom&, const MemoryHeadroom&) = default;
};

/// Why a plan's step takes as long as predicted.
struct Explanation {
  Prediction prediction;
  StepParts parts;                       ///< mean over all ranks
  std::vector<PositionParts> positions;  ///< by pipeline position
  int steps = 1;                         ///< covered by the path: more than one with an asynchronous schedule
  std::vector<Span> path;                ///< CriticalPath::segments; empty for a step too long to be replayed in full
  std::vector<PathShare> path_shares;    ///< of the path, the largest first
  int bottleneck = 0;                    ///< position whose ranks compute, update and reduce longest
  double imbalance = 0;                  ///< that time divided by its mean over all ranks, minus 1
  int moves = 0;                         ///< single moves of a layer to an adjacent stage that are possible
  std::optional<LayerMove> best_move;    ///< the one with the shortest step; absent if none is possible or fits
  std::vector<MemoryHeadroom> memory;    ///< by rank
};

struct ExplainOptions {
  std::optional<Calibration> calibration = {};
  PredictOptions predict = {};
  bool moves = true;  ///< look for the best move
};

/// Breaks down the prediction of predict (or predict_calibrated, given a calibration). predict evaluates every move of
/// one layer between adjacent stages that keeps all edges forward and no stage empty, except moves after which a rank's
/// own work alone takes longer than the best step found. A move counts if the result fits in memory, or the plan itself
/// does not fit. Throws std::invalid_argument as predict.
[[nodiscard]] std::variant<Explanation, Infeasible> explain(const Graph& graph, const Topology& topology,
                                                            const BoundPlan& plan, const ExplainOptions& options = {});

/// For people: shares in percent, the path, the bottleneck, idle devices, the best move, memory; no wider than the
/// screen, if the table's columns allow it.
[[nodiscard]] std::string explanation_text(const Explanation& explanation, const Screen& screen);

}  // namespace stagecraft
