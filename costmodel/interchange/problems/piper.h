#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "costmodel/graph.h"
#include "costmodel/interchange/problems/dnn_partitioning.h"

namespace stagecraft::interchange {

// The inputs of msr-fiddle/piper (Tarnawski et al., Piper: Multidimensional Planner for DNN Parallelization, NeurIPS
// 2021): a graph of layers, each with the ways to run it on 1, 2, ... tensor-parallel devices. Bytes are double, not
// Bytes: published inputs hold fractions of a byte, as 18496880.64 in inputs/resnet.json.

/// A way to run a layer, Piper's TMPC (tensor-model-parallel configuration).
struct PiperMode {
  std::string id;                       ///< "vanilla", "activation recomp"
  double time = 0;                      ///< forward and backward of one sample, in the file's unit; Piper's p
  double parameters = 0;                ///< bytes, Piper's w
  double memory_each = 0;               ///< bytes for each sample in flight, Piper's a
  double memory_fixed = 0;              ///< bytes, Piper's b
  std::map<int, double> sync_forward;   ///< bytes by the node (an index) that an edge comes from
  std::map<int, double> sync_backward;  ///< bytes by the node that an edge goes to
};

struct PiperNode {
  std::int64_t id = 0;
  std::string name;                             ///< empty if the file has none
  std::map<int, std::vector<PiperMode>> modes;  ///< by the number of tensor-parallel devices
};

/// `source` and `destination` are indices into Piper::nodes.
struct PiperEdge {
  int source = 0;
  int destination = 0;
  double bytes = 0;
};

struct Piper {
  double memory_limit = 0;  ///< bytes of a device
  int devices = 0;
  double bandwidth = 0;  ///< bytes per second, of each device
  int microbatches = 0;  ///< in a batch, Piper's N
  std::vector<PiperNode> nodes;
  std::vector<PiperEdge> edges;
};

/// Reads an input; the number of microbatches is called mbsInBatch, or maxBatchSize as in Piper's README. Keys that the
/// format does not define are ignored. Throws FormatError "FILE: POINTER: found, expected" for text that is not JSON, a
/// missing key, a number out of range, an id that appears twice or does not exist, an edge that appears twice, a mode
/// whose sync times are not those of the node's edges, and a cycle.
[[nodiscard]] Piper parse_piper(const std::string& text, const std::string& file);

/// Seconds in one unit of PiperMode::time, and why.
struct PiperTimeUnit {
  double s = 1;
  std::string reason;  ///< one line, human-readable
};

/// The published unit is 1 s. The fixed one is 1 ms if the fastest modes of all layers on one device add up to more
/// than 20: published inputs made from PipeDream's profiles have milliseconds there.
[[nodiscard]] PiperTimeUnit piper_time_unit(const Piper& input, Units units);

/// A graph with a layer for each node, run on one device in its first mode. The forward is the extra time of the mode
/// "activation recomp", or a third of the time if there is no such mode; notes say which. Sizes in flight are in
/// saved_bytes. Whatever a graph has no field for (devices, other modes) is in the provenance's notes. Throws
/// std::invalid_argument for a node without a mode for one device.
[[nodiscard]] Graph piper_graph(const Piper& input, Units units);

}  // namespace stagecraft::interchange
