#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <string>
#include <vector>

#include "costmodel/format/cursor.h"
#include "costmodel/index.h"
#include "costmodel/units.h"

// What the readers of other planners' problems (dnn-partitioning, Piper) have in common.

namespace stagecraft::interchange {

inline constexpr std::int64_t kMostId = std::int64_t{1} << 53;  // ids are JSON numbers
inline constexpr double kMostAmount = 1e18;  // of a time or size: sums of a file's numbers stay finite

/// The number at `at`, a time or size. Throws FormatError unless it is from 0 to kMostAmount.
inline double amount(const format::Cursor& at) {
  const double value = at.not_negative();
  if (value > kMostAmount) at.fail_type("a number of at most 1e18");
  return value;
}

/// Bytes as a graph counts them.
inline Bytes whole_bytes(double bytes) { return Bytes(static_cast<std::int64_t>(std::llround(std::min(bytes, 2e18)))); }

/// Throws FormatError at the first node of the list `at` that is on a cycle or after one. Edges name nodes by their
/// index.
template <class Node, class Edge>
void check_acyclic(const format::Cursor& at, const std::vector<Node>& nodes, const std::vector<Edge>& edges) {
  std::vector<std::vector<int>> next(nodes.size());
  std::vector<int> waiting(nodes.size(), 0);
  for (const Edge& edge : edges) {
    next[to_index(edge.source)].push_back(edge.destination);
    ++waiting[to_index(edge.destination)];
  }
  std::vector<int> ready;
  for (std::size_t v = 0; v < waiting.size(); ++v) {
    if (waiting[v] == 0) ready.push_back(to_int(v));
  }
  std::size_t done = 0;
  while (!ready.empty()) {
    const auto v = to_index(ready.back());
    ready.pop_back();
    ++done;
    for (const int to : next[v]) {
      if (--waiting[to_index(to)] == 0) ready.push_back(to);
    }
  }
  if (done == nodes.size()) return;
  const auto stuck = std::ranges::find_if(waiting, [](int n) { return n > 0; }) - waiting.begin();
  at.at(to_index(stuck))
      .fail("node " + std::to_string(nodes[to_index(stuck)].id) +
            " is on a cycle or after one, expected an acyclic graph");
}

}  // namespace stagecraft::interchange
