#pragma once

#include <cstddef>
#include <span>
#include <utility>
#include <vector>

namespace stagecraft::intake {

/// Values that may share memory, as disjoint sets.
class MemorySets {
 public:
  /// `values` values, each in a separate set.
  explicit MemorySets(std::size_t values);
  /// Joins the sets of each pair (given, read): a node's result and a value that it reads and of which the result may
  /// be a view.
  void join(std::span<const std::pair<int, int>> aliases);
  /// A number for the set of `value`.
  [[nodiscard]] int of(int value);

 private:
  std::vector<int> parent_;
};

}  // namespace stagecraft::intake
