#pragma once

#include <cstddef>
#include <span>
#include <utility>
#include <vector>

namespace stagecraft {

/// Values that may share memory, as disjoint sets.
class MemorySets {
 public:
  /// `values` values, each in a set of its own.
  explicit MemorySets(std::size_t values);
  /// Joins the sets of each pair (given, read): a value that a node gives, and one that it reads and may be a view of.
  void join(std::span<const std::pair<int, int>> aliases);
  /// A number for the set that `value` is in.
  [[nodiscard]] int of(int value);

 private:
  std::vector<int> parent_;
};

}  // namespace stagecraft
