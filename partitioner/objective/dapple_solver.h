#pragma once

#include <optional>
#include <variant>
#include <vector>

#include "costmodel/errors.h"
#include "costmodel/graph.h"
#include "costmodel/units.h"
#include "partitioner/costs/byte_units.h"
#include "partitioner/objective/load_solver.h"

namespace stagecraft::partitioner {

/// A list of layers to divide among equal devices, for the step of one minibatch.
struct DappleProblem {
  struct ListLayer {
    int node = 0;  ///< which it is, for DappleStage
    Seconds time;  ///< forward and backward of a microbatch on one device
    FractionalBytes parameters;
    FractionalBytes outputs;   ///< of a microbatch
    FractionalBytes crossing;  ///< the outputs that layers behind this one read from it or from those before
  };
  std::vector<ListLayer> layers;
  int devices = 1;
  int microbatches = 1;
  BytesPerSecond bandwidth;
  std::optional<FractionalBytes> memory_limit;  ///< of a device, for its parameters and outputs
};

/// Some neighbouring layers, whose devices divide each microbatch among them.
struct DappleStage {
  std::vector<int> nodes;
  int devices = 1;
  Seconds time;  ///< of a microbatch
  FractionalBytes bytes;
};

struct DappleAnswer {
  Seconds value;
  Seconds lower_bound;
  std::vector<DappleStage> stages;  ///< first to last
  SearchEffort effort;
};

/// The lists of a graph's layers, besides inputs, in two depth-first orders; nodes are numbers of layers.
[[nodiscard]] std::vector<DappleProblem> dapple_problems(const Graph& graph, int devices, BytesPerSecond bandwidth,
                                                         int microbatches, std::optional<Bytes> memory_limit);

/// The division of one of the lists with the shortest step by DAPPLE's published planner,
///   T + (M - 1) block + sum of x_s + max(0, max over s of a_s - s block),
/// where T is the time of a microbatch on one device, x_s the time of the bytes that cross the end of stage s, block
/// the largest of all stages' times T_s / r_s and of 2 x_s, and a_s = 2 (r_s - 1) / r_s parameters / bandwidth. The
/// first stage has number 0. A plan has at most one stage per microbatch. Infeasible if no plan fits in memory.
///
/// For a block of at most b, the least of the other terms is found by dynamic programming over layers, devices and
/// stages, with those pairs of sums and reduces that are not both larger than another one's; it falls as b grows. So
/// the blocks that there can be are searched by intervals: (M - 1) times the smallest and the rest of the largest are a
/// bound of all between them.
/// Source: Fan et al., PPoPP 2021, and the published code, whose own search minimises the block alone.
[[nodiscard]] std::variant<DappleAnswer, Infeasible> solve(const std::vector<DappleProblem>& lists,
                                                           const SearchLimits& limits = {});

/// The step of a division of a list: `ends` are one after the last layer of each stage.
[[nodiscard]] Seconds dapple_step(const DappleProblem& problem, const std::vector<int>& ends,
                                  const std::vector<int>& devices);

}  // namespace stagecraft::partitioner
