#include "executor/intake/graph/observed_values.h"

#include <algorithm>
#include <numeric>

namespace stagecraft {
namespace {

std::size_t at_(int i) { return static_cast<std::size_t>(i); }

/// Values that may share memory, as disjoint sets.
class Memory {
 public:
  Memory(std::span<const ValueFlow> nodes, std::size_t values) : parent_(values) {
    std::iota(parent_.begin(), parent_.end(), 0);
    for (const ValueFlow& node : nodes) {
      for (const auto& [given, read] : node.aliases) parent_[at_(of(given))] = of(read);
    }
  }
  [[nodiscard]] int of(int value) {
    while (parent_[at_(value)] != value) value = parent_[at_(value)] = parent_[at_(parent_[at_(value)])];
    return value;
  }

 private:
  std::vector<int> parent_;
};

}  // namespace

std::vector<bool> observed_values(std::span<const ValueFlow> nodes, const std::vector<int>& roots, std::size_t values) {
  Memory memory(nodes, values);
  std::vector<bool> wanted(values);  // by set
  for (const int root : roots) wanted[at_(memory.of(root))] = true;
  for (bool changed = true; changed;) {
    changed = false;
    for (auto node = nodes.rbegin(); node != nodes.rend(); ++node) {
      const auto is_wanted = [&](int value) { return wanted[at_(memory.of(value))]; };
      if (std::ranges::none_of(node->gives, is_wanted) && std::ranges::none_of(node->writes, is_wanted)) continue;
      for (const int read : node->reads) {
        if (is_wanted(read) || std::ranges::find(node->only_writes, read) != node->only_writes.end()) continue;
        wanted[at_(memory.of(read))] = changed = true;
      }
    }
  }
  std::vector<bool> out(values);
  for (std::size_t v = 0; v < values; ++v) out[v] = wanted[at_(memory.of(static_cast<int>(v)))];
  return out;
}

int first_of_memory(std::span<const ValueFlow> nodes, int value, std::size_t values) {
  Memory memory(nodes, values);
  std::vector<bool> given(values);
  for (const ValueFlow& node : nodes) {
    for (const int each : node.gives) given[at_(each)] = true;
  }
  for (std::size_t v = 0; v < values; ++v) {
    if (!given[v] && memory.of(static_cast<int>(v)) == memory.of(value)) return static_cast<int>(v);
  }
  return value;
}

}  // namespace stagecraft
