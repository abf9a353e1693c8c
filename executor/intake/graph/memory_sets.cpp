#include "executor/intake/graph/memory_sets.h"

#include <algorithm>
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

namespace {

MemorySets memory_of(std::span<const NodeEffects> nodes, std::size_t values) {
  MemorySets out(values);
  for (const NodeEffects& node : nodes) out.join(node.aliases);
  return out;
}

}  // namespace

std::vector<bool> observed_values(std::span<const NodeEffects> nodes, const std::vector<int>& roots,
                                  std::size_t values) {
  MemorySets memory = memory_of(nodes, values);
  std::vector<bool> wanted(values);  // by set
  for (const int root : roots) wanted[to_index(memory.of(root))] = true;
  for (bool changed = true; changed;) {
    changed = false;
    for (auto node = nodes.rbegin(); node != nodes.rend(); ++node) {
      const auto is_wanted = [&](int value) { return wanted[to_index(memory.of(value))]; };
      if (std::ranges::none_of(node->gives, is_wanted) && std::ranges::none_of(node->writes, is_wanted)) continue;
      for (const int read : node->reads) {
        if (is_wanted(read) || std::ranges::find(node->only_writes, read) != node->only_writes.end()) continue;
        wanted[to_index(memory.of(read))] = changed = true;
      }
    }
  }
  std::vector<bool> out(values);
  for (std::size_t v = 0; v < values; ++v) out[v] = wanted[to_index(memory.of(to_int(v)))];
  return out;
}

int first_of_memory(std::span<const NodeEffects> nodes, int value, std::size_t values) {
  MemorySets memory = memory_of(nodes, values);
  std::vector<bool> given(values);
  for (const NodeEffects& node : nodes) {
    for (const int result : node.gives) given[to_index(result)] = true;
  }
  for (std::size_t v = 0; v < values; ++v) {
    if (!given[v] && memory.of(to_int(v)) == memory.of(value)) return to_int(v);
  }
  return value;
}

}  // namespace stagecraft::intake
