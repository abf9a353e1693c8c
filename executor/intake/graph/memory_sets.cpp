#include "executor/intake/graph/memory_sets.h"

#include <numeric>

#include "costmodel/index.h"

namespace stagecraft::intake {
MemorySets::MemorySets(std::size_t values) : parent_(values) { std::iota(parent_.begin(), parent_.end(), 0); }

void MemorySets::join(std::span<const std::pair<int, int>> aliases) {
  for (const auto& [given, read] : aliases) parent_[to_index(of(given))] = of(read);
}

int MemorySets::of(int value) {
  while (parent_[to_index(value)] != value)
    value = parent_[to_index(value)] = parent_[to_index(parent_[to_index(value)])];
  return value;
}

}  // namespace stagecraft::intake
