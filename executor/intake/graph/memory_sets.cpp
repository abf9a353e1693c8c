#include "executor/intake/graph/memory_sets.h"

#include <numeric>

namespace stagecraft {
namespace {

std::size_t at_(int i) { return static_cast<std::size_t>(i); }

}  // namespace

MemorySets::MemorySets(std::size_t values) : parent_(values) { std::iota(parent_.begin(), parent_.end(), 0); }

void MemorySets::join(std::span<const std::pair<int, int>> aliases) {
  for (const auto& [given, read] : aliases) parent_[at_(of(given))] = of(read);
}

int MemorySets::of(int value) {
  while (parent_[at_(value)] != value) value = parent_[at_(value)] = parent_[at_(parent_[at_(value)])];
  return value;
}

}  // namespace stagecraft
