#pragma once

#include <string>
#include <variant>
#include <vector>

#include "costmodel/errors.h"
#include "costmodel/graph.h"
#include "costmodel/interchange/problems/piper.h"
#include "costmodel/units.h"
#include "partitioner/objective/load_solver.h"

namespace stagecraft::partitioner {

/// A stage of Piper's: `replicas` data-parallel copies on `tensor_devices` devices each.
struct PiperStage {
  std::vector<int> nodes;          ///< ascending
  std::vector<std::string> modes;  ///< the mode's id, for each node
  int replicas = 1;
  int tensor_devices = 1;
  int in_flight = 1;  ///< samples in flight on each device
  Seconds time;
  FractionalBytes bytes;  ///< on each device
};

struct PiperAnswer {
  Seconds value;  ///< the slowest stage's time per sample
  Seconds lower_bound;
  std::vector<PiperStage> stages;  ///< first to last
  SearchEffort effort;
};

/// Piper's problem of a graph: a layer has one way to run, on one device. Its memory is parameters twice, for two
/// versions of the weights, and its outputs for each sample in flight. Inputs are left out. Throws
/// std::invalid_argument for a graph that has only inputs.
[[nodiscard]] interchange::Piper piper_problem(const Graph& graph, int devices, BytesPerSecond bandwidth,
                                               int microbatches, std::optional<Bytes> memory_limit);

/// The partition with the smallest time per sample, Piper's TPS, as its published planner finds it: stages of d
/// replicas on t devices each, d a divisor of the microbatches N, sum d t within the devices and sum d within N. With
/// edge bytes c, sync bytes s, parameters w and times p of the chosen modes, a stage takes
///   (sum over edges that cross its border of 2 (c + s) / d + sum 4 (d - 1) w / (d N)) / bandwidth + sum p / d
/// and needs sum a y + b bytes, y = ceil((sum of d of this stage and those after it) / d). The fastest mode of each
/// node is taken; while that does not fit, the change with the least time for each byte saved, which is Piper's rule
/// and may overshoot. Infeasible if no partition fits. `time_unit`: one unit of the input's times.
/// A search over all down-sets; past SearchLimits::downsets, over two depth-first orders as lists.
/// Source: Tarnawski et al., NeurIPS 2021, and the published code.
[[nodiscard]] std::variant<PiperAnswer, Infeasible> solve(const interchange::Piper& problem, Seconds time_unit,
                                                          const SearchLimits& limits = {});

}  // namespace stagecraft::partitioner
