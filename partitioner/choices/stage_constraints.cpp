#include "partitioner/choices/stage_constraints.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <stdexcept>

#include "costmodel/errors.h"
#include "costmodel/index.h"
#include "costmodel/plan.h"
#include "costmodel/text/number.h"

namespace stagecraft::partitioner {
namespace {

constexpr int kMostStages = 1 << 20;

/// Which layers come after which, by edges.
class Reach {
 public:
  explicit Reach(const Graph& graph) : after_(graph.layers.size()), before_(graph.layers.size()) {
    for (const Edge& edge : graph.edges) {
      after_[to_index(edge.source)].push_back(edge.destination);
      before_[to_index(edge.destination)].push_back(edge.source);
    }
  }
  [[nodiscard]] std::vector<bool> after(const std::vector<int>& layers) const { return from(layers, after_); }
  [[nodiscard]] std::vector<bool> before(const std::vector<int>& layers) const { return from(layers, before_); }

 private:
  /// The layers and all that can be reached from them.
  static std::vector<bool> from(const std::vector<int>& layers, const std::vector<std::vector<int>>& next) {
    std::vector<bool> out(next.size());
    std::vector<int> left = layers;
    while (!left.empty()) {
      const int layer = left.back();
      left.pop_back();
      if (out[to_index(layer)]) continue;
      out[to_index(layer)] = true;
      left.insert(left.end(), next[to_index(layer)].begin(), next[to_index(layer)].end());
    }
    return out;
  }
  std::vector<std::vector<int>> after_, before_;
};

/// Positions in layer_list of the layers that `name` means.
std::vector<int> positions_of(const std::vector<std::string>& ids, const std::string& name, const std::string& option) {
  std::vector<int> out;
  for (std::size_t i = 0; i < ids.size(); ++i) {
    if (ids[i] == name || ids[i].starts_with(name + ".")) out.push_back(to_int(i));
  }
  if (out.empty()) throw InputError(ErrorKind::UnknownName, option + ": " + unknown_name("layer", name, ids));
  return out;
}

int stage_number(const std::string& text, const std::string& pin) {
  const int stage = number_in<int>(text).value_or(-1);
  if (stage < 0 || stage >= kMostStages)
    throw std::invalid_argument("--pin: found \"" + pin + "\", expected LAYER=STAGE with stages from 0");
  return stage;
}

void read_pin(const std::vector<int>& list, const std::vector<std::string>& ids, const std::string& pin,
              StageConstraints& out) {
  const std::size_t sign = pin.rfind('=');
  if (sign == std::string::npos || sign == 0)
    throw std::invalid_argument("--pin: found \"" + pin + "\", expected LAYER=STAGE with stages from 0");
  const int stage = stage_number(pin.substr(sign + 1), pin);
  for (const int position : positions_of(ids, pin.substr(0, sign), "--pin"))
    out.pins.emplace_back(list[to_index(position)], stage);
}

void read_range(const Graph& graph, const Reach& reach, const std::vector<int>& list,
                const std::vector<std::string>& ids, const std::string& range, StageConstraints& out) {
  const std::size_t dots = range.find("..");
  if (dots == std::string::npos || dots == 0 || dots + 2 == range.size())
    throw std::invalid_argument("--no-cut-in: found \"" + range + "\", expected FIRST..LAST");
  const int first = positions_of(ids, range.substr(0, dots), "--no-cut-in").front();
  const int last = positions_of(ids, range.substr(dots + 2), "--no-cut-in").back();
  if (first > last)
    throw std::invalid_argument("--no-cut-in: in \"" + range + "\" the first layer comes after the last one");
  std::vector<int> layers;
  for (int position = first; position <= last; ++position) layers.push_back(list[to_index(position)]);
  const std::vector<bool> after = reach.after(layers);
  const std::vector<bool> before = reach.before(layers);
  std::vector<int> closed;
  for (const int layer : list) {
    const bool named = std::ranges::find(layers, layer) != layers.end();
    if (named || (after[to_index(layer)] && before[to_index(layer)] && !is_input(graph.layers[to_index(layer)])))
      closed.push_back(layer);
  }
  std::ranges::sort(closed);
  out.together.push_back(std::move(closed));
}

void check_pins(const Graph& graph, const Reach& reach, const StageConstraints& hand) {
  const auto text = [&](const std::pair<int, int>& pin) {
    return fmt::format("{}={}", graph.layers[to_index(pin.first)].id, pin.second);
  };
  for (const auto& pin : hand.pins) {
    const std::vector<bool> after = reach.after({pin.first});
    for (const auto& other : hand.pins) {
      if (after[to_index(other.first)] && other.second < pin.second) {
        throw std::invalid_argument("--pin: " + text(pin) + " and " + text(other) +
                                    " contradict each other: the second layer uses the first one's output");
      }
    }
  }
  for (const std::vector<int>& group : hand.together) {
    const std::pair<int, int>* first = nullptr;
    for (const auto& pin : hand.pins) {
      if (!std::ranges::binary_search(group, pin.first)) continue;
      if (first != nullptr && first->second != pin.second) {
        throw std::invalid_argument("--pin: " + text(*first) + " and " + text(pin) +
                                    " contradict --no-cut-in, which puts both layers in one stage");
      }
      first = &pin;
    }
  }
}

}  // namespace

StageConstraints stage_constraints(const Graph& graph, const std::vector<std::string>& pins,
                                   const std::vector<std::string>& no_cuts) {
  StageConstraints out;
  const std::vector<int> list = layer_list(graph);
  const std::vector<std::string> ids = layer_ids(graph);
  const Reach reach(graph);
  for (const std::string& pin : pins) read_pin(list, ids, pin, out);
  for (const std::string& range : no_cuts) read_range(graph, reach, list, ids, range, out);
  check_pins(graph, reach, out);
  return out;
}

bool honours(const Partition& partition, const StageConstraints& hand) {
  const auto stage = [&](int layer) { return partition.stage_of_layer[to_index(layer)]; };
  return std::ranges::all_of(hand.pins, [&](const auto& pin) { return stage(pin.first) == pin.second; }) &&
         std::ranges::all_of(hand.together, [&](const std::vector<int>& group) {
           return std::ranges::all_of(group, [&](int layer) { return stage(layer) == stage(group.front()); });
         });
}

std::optional<Partition> with_stage_constraints(const Graph& graph, Partition partition, const StageConstraints& hand) {
  const Reach reach(graph);
  std::vector<int>& stages = partition.stage_of_layer;
  const int count = to_int(partition.replicas.size());
  const auto put = [&](const std::vector<int>& layers, int stage) {
    const std::vector<bool> after = reach.after(layers);
    const std::vector<bool> before = reach.before(layers);
    for (std::size_t i = 0; i < stages.size(); ++i) {
      if (stages[i] < 0) continue;  // an input
      if (after[i]) stages[i] = std::max(stages[i], stage);
      if (before[i]) stages[i] = std::min(stages[i], stage);
    }
    for (const int layer : layers) stages[to_index(layer)] = stage;
  };
  for (const auto& [layer, stage] : hand.pins) {
    if (stage >= count) return std::nullopt;
    put({layer}, stage);
  }
  for (const std::vector<int>& group : hand.together) {
    std::map<int, int> layers_in;
    for (const int layer : group) ++layers_in[stages[to_index(layer)]];
    int stage = std::ranges::max_element(layers_in, {}, [](const auto& entry) { return entry.second; })->first;
    for (const auto& pin : hand.pins) {
      if (std::ranges::binary_search(group, pin.first)) stage = pin.second;
    }
    put(group, stage);
  }
  std::vector<bool> used(to_index(count));
  for (const int stage : stages) {
    if (stage >= 0) used[to_index(stage)] = true;
  }
  if (!std::ranges::all_of(used, [](bool u) { return u; }) || !honours(partition, hand)) return std::nullopt;
  for (const Edge& edge : graph.edges) {
    if (stages[to_index(edge.source)] > stages[to_index(edge.destination)]) return std::nullopt;
  }
  return partition;
}

}  // namespace stagecraft::partitioner
