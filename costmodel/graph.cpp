#include "costmodel/graph.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <functional>
#include <queue>
#include <set>
#include <stdexcept>
#include <string_view>
#include <tuple>
#include <unordered_map>
#include <unordered_set>
#include <utility>

#include "costmodel/errors.h"
#include "costmodel/index.h"
#include "costmodel/slice.h"

namespace stagecraft {
namespace {

[[noreturn]] void refuse(const std::string& what) { throw std::invalid_argument(what); }

/// Limit for the sum of all bytes of a graph, so that no sum over layers overflows.
constexpr Bytes kMostBytes(std::int64_t{1} << 60);

void add_bytes(Bytes& sum, Bytes bytes, const std::string& where) {
  if (bytes < Bytes(0)) refuse(where + " are negative");
  if (bytes > kMostBytes - sum) refuse(where + " bring the graph above 2^60 bytes");
  sum += bytes;
}

bool is_time(Seconds time) { return time >= Seconds(0) && std::isfinite(time.value); }

void check_timing(const Timing& timing, const std::string& where) {
  if (!is_time(timing.median)) refuse(where + " is negative or not a number");
  if (timing.spread && !is_time(*timing.spread)) refuse(where + " has a spread that is negative or not a number");
  if (timing.count < 0) refuse(where + " has a negative count");
  if (timing.log_spread && !(*timing.log_spread >= 0 && std::isfinite(*timing.log_spread)))
    refuse(where + " has a logarithmic spread that is negative or not a number");
}

/// Adds the layer's bytes to `sum`.
void check_layer(const Layer& layer, Bytes& sum) {
  const std::string where = "layer \"" + layer.id + "\": ";
  check_timing(layer.forward, where + "forward time");
  check_timing(layer.backward, where + "backward time");
  if (layer.backward_parts) {
    check_timing(layer.backward_parts->inputs, where + "input-gradient time");
    check_timing(layer.backward_parts->weights, where + "weight-gradient time");
  }
  if (layer.accumulation) check_timing(*layer.accumulation, where + "accumulation time");
  if (layer.update) check_timing(*layer.update, where + "update time");
  if (layer.loading) check_timing(*layer.loading, where + "loading time");
  add_bytes(sum, layer.parameter_bytes, where + "parameter bytes");
  add_bytes(sum, layer.frozen_bytes, where + "frozen bytes");
  if (layer.written_bytes < Bytes(0)) refuse(where + "written bytes are negative");
  if (layer.written_bytes > layer.frozen_bytes)
    refuse(where + "a forward writes more bytes than are frozen or buffers");
  for (const Output& output : layer.outputs) add_bytes(sum, output.bytes, where + "output bytes");
  if (layer.saved_bytes) add_bytes(sum, *layer.saved_bytes, where + "saved bytes");
  if (layer.workspace_bytes) add_bytes(sum, *layer.workspace_bytes, where + "workspace bytes");
  Bytes tied;
  for (const TiedParameter& parameter : layer.tied) add_bytes(tied, parameter.bytes, where + "tied parameter bytes");
  if (tied > layer.parameter_bytes) refuse(where + "tied parameters have more bytes than all parameters");
}

/// Checks what the layer names against its bytes. `known`: the tensors that earlier layers name.
void check_tensors(const Layer& layer, std::unordered_map<std::string, const StateTensor*>& known) {
  const std::string where = "layer \"" + layer.id + "\": ";
  std::set<std::string> here;
  Bytes sum;
  for (const auto* tensors : {&layer.parameter_tensors, &layer.exchanged_buffers}) {
    for (const StateTensor& tensor : *tensors) {
      const std::string text =
          where + (tensors == &layer.parameter_tensors ? "parameter" : "buffer") + " \"" + tensor.name + "\"";
      check_tensor(tensor, text);
      if (!here.insert(tensor.name).second) refuse(text + " appears twice");
      if (tensors != &layer.parameter_tensors) continue;
      add_bytes(sum, tensor_bytes(tensor), text + ": its bytes");
      const auto [other, fresh] = known.emplace(tensor.name, &tensor);
      if (!fresh && *other->second != tensor) refuse(text + " has another shape or dtype than in an earlier layer");
      const auto tied = std::ranges::find(layer.tied, tensor.name, &TiedParameter::name);
      if (!fresh && tied == layer.tied.end()) refuse(text + " is in an earlier layer too, but not among those tied");
      if (tied != layer.tied.end() && tied->bytes != tensor_bytes(tensor))
        refuse(text + " has " + std::to_string(tensor_bytes(tensor).value) + " bytes, but " +
               std::to_string(tied->bytes.value) + " among those tied");
    }
  }
  if (layer.parameter_tensors.empty()) return;
  if (sum != layer.parameter_bytes)
    refuse(where + "its named parameters have " + std::to_string(sum.value) + " bytes, all its parameters have " +
           std::to_string(layer.parameter_bytes.value));
  for (const TiedParameter& tied : layer.tied) {
    if (!here.contains(tied.name)) refuse(where + "tied parameter \"" + tied.name + "\" is not among its parameters");
  }
}

/// Layer indices in order, shorter than the graph if there is a cycle.
std::vector<int> kahn(const Graph& graph) {
  const std::size_t n = graph.layers.size();
  std::vector<int> waiting(n, 0);
  std::vector<std::vector<int>> consumers(n);
  for (const Edge& edge : graph.edges) {
    ++waiting[to_index(edge.destination)];
    consumers[to_index(edge.source)].push_back(edge.destination);
  }
  std::priority_queue<int, std::vector<int>, std::greater<>> ready;
  for (std::size_t i = 0; i < n; ++i) {
    if (waiting[i] == 0) ready.push(to_int(i));
  }
  std::vector<int> order;
  order.reserve(n);
  while (!ready.empty()) {
    const int layer = ready.top();
    ready.pop();
    order.push_back(layer);
    for (const int consumer : consumers[to_index(layer)]) {
      if (--waiting[to_index(consumer)] == 0) ready.push(consumer);
    }
  }
  return order;
}

}  // namespace

void validate(const Graph& graph) {
  if (graph.layers.empty()) refuse("the graph has no layers");
  validate(graph.types, graph.dtype);
  std::unordered_set<std::string> ids;
  Bytes bytes;
  std::unordered_map<std::string, const StateTensor*> tensors;
  for (const Layer& layer : graph.layers) {
    if (layer.id.empty()) refuse("a layer has an empty id");
    if (!ids.insert(layer.id).second) refuse("layer id \"" + layer.id + "\" appears twice");
    check_layer(layer, bytes);
    check_tensors(layer, tensors);
    for (const StateTensor& parameter : layer.parameter_tensors)
      check_parameter(parameter, graph.types, "layer \"" + layer.id + "\": parameter \"" + parameter.name + "\"");
  }
  if (const auto& slowdown = graph.in_flight_slowdown) {
    if (slowdown->microbatches < 2) refuse("an in-flight slowdown was measured with fewer than 2 microbatches");
    if (!(slowdown->factor >= 1) || !std::isfinite(slowdown->factor))
      refuse("the in-flight slowdown is below 1 or not a number");
  }
  for (const double factor : graph.slowdown) {
    if (!(factor >= 1) || !std::isfinite(factor)) refuse("a slowdown is below 1 or not a number");
  }
  if (graph.device.host_processors < 0) refuse("host_processors is negative");
  if (graph.iteration) check_timing(*graph.iteration, "the iteration time");
  const int n = to_int(graph.layers.size());
  std::set<std::tuple<int, int, int>> seen;
  for (const Edge& edge : graph.edges) {
    if (edge.source < 0 || edge.source >= n || edge.destination < 0 || edge.destination >= n) {
      refuse("an edge names a layer that does not exist");
    }
    const std::string& from = graph.layers[to_index(edge.source)].id;
    const std::string where = "edge \"" + from + "\" to \"" + graph.layers[to_index(edge.destination)].id + "\"";
    if (edge.source == edge.destination) refuse(where + " joins a layer to itself");
    const int outputs = to_int(graph.layers[to_index(edge.source)].outputs.size());
    if (edge.output && (*edge.output < 0 || *edge.output >= outputs)) {
      refuse(where + " reads output " + std::to_string(*edge.output) + ", the layer has " + std::to_string(outputs));
    }
    if (is_input(graph.layers[to_index(edge.destination)])) refuse(where + " goes into an input layer");
    if (!edge.output && !seen.insert({edge.source, edge.destination, -1}).second) refuse(where + " appears twice");
  }
  (void)topological_order(graph);
}

std::vector<int> topological_order(const Graph& graph) {
  std::vector<int> order = kahn(graph);
  if (order.size() != graph.layers.size()) {
    std::vector<bool> done(graph.layers.size(), false);
    for (const int layer : order) done[to_index(layer)] = true;
    // Walking backwards over unfinished layers must return to one: each has an unfinished source.
    int at = to_int(std::find(done.begin(), done.end(), false) - done.begin());
    std::vector<int> unfinished_source(graph.layers.size(), -1);
    for (const Edge& edge : graph.edges) {
      if (!done[to_index(edge.source)]) { unfinished_source[to_index(edge.destination)] = edge.source; }
    }
    std::vector<bool> visited(graph.layers.size(), false);
    while (!visited[to_index(at)]) {
      visited[to_index(at)] = true;
      at = unfinished_source[to_index(at)];
    }
    refuse("layer \"" + graph.layers[to_index(at)].id + "\" is on a cycle; a graph must be acyclic");
  }
  return order;
}

Bytes value_bytes(const std::string& dtype) {
  // The most frequent first: predictions ask for each parameter.
  static constexpr std::array<std::pair<std::string_view, int>, 12> kKnown{{{"float32", 4},
                                                                            {"float16", 2},
                                                                            {"bfloat16", 2},
                                                                            {"float64", 8},
                                                                            {"int64", 8},
                                                                            {"int32", 4},
                                                                            {"int16", 2},
                                                                            {"int8", 1},
                                                                            {"uint8", 1},
                                                                            {"bool", 1},
                                                                            {"complex64", 8},
                                                                            {"complex128", 16}}};
  const auto* const it = std::ranges::find(kKnown, dtype, &std::pair<std::string_view, int>::first);
  return Bytes(it == kKnown.end() ? 0 : it->second);
}

Bytes tensor_bytes(const StateTensor& tensor) { return value_bytes(tensor.dtype) * element_count(tensor.shape); }

void check_tensor(const StateTensor& tensor, const std::string& where) {
  if (tensor.name.empty()) refuse(where + " has an empty name");
  if (value_bytes(tensor.dtype) == Bytes(0)) refuse(where + " has the unknown dtype \"" + tensor.dtype + "\"");
  Bytes bytes = value_bytes(tensor.dtype);
  for (const std::int64_t size : tensor.shape) {
    if (size < 0 || (size > 0 && bytes.value > kMostBytes.value / size))
      refuse(where + " has a size that is negative, or more than 2^60 bytes");
    bytes = bytes * size;
  }
}

void check_parameter(const StateTensor& tensor, const StateTypes& types, const std::string& where) {
  const std::string bfloat16 = to_string(StateType::Bfloat16);
  if ((tensor.dtype == bfloat16) == (types.parameters == StateType::Bfloat16)) return;
  refuse(where + " is " + tensor.dtype + ", but the type of parameters is " + to_string(types.parameters));
}

Bytes optimizer_bytes(const Graph& graph, Bytes bytes) {
  return optimizer_bytes(graph.types, graph.optimizer_state_values, bytes);
}

Bytes update_bytes(const Graph& graph, Bytes bytes) {
  return update_bytes(graph.types, graph.optimizer_state_values, bytes);
}

bool names_parameters(const Graph& graph) {
  return std::ranges::none_of(graph.layers, [](const Layer& layer) {
    return layer.parameter_tensors.empty() && layer.parameter_bytes > Bytes(0);
  });
}

Bytes activation_bytes(const Layer& layer) {
  Bytes sum;
  for (const Output& output : layer.outputs) sum += output.bytes;
  return sum;
}

Bytes bytes_saved(const Layer& layer) { return layer.saved_bytes.value_or(activation_bytes(layer)); }

bool is_input(const Layer& layer) { return layer.kind == kInputKind; }

bool has_times(const Graph& graph) {
  return std::any_of(graph.layers.begin(), graph.layers.end(), [](const Layer& layer) {
    return !is_input(layer) && layer.forward.median + layer.backward.median > Seconds(0);
  });
}

void check_has_times(const Graph& graph) {
  if (has_times(graph)) return;
  std::string command = "stagecraft profile " + (graph.name.empty() ? "MODEL" : graph.name);
  for (const auto& [key, value] : graph.options) command += " --set " + key + "=" + value;
  if (graph.microbatch_samples) command += " --microbatch " + std::to_string(*graph.microbatch_samples);
  throw InputError(ErrorKind::NoTimes,
                   "every layer takes 0 s (the graph was written by profile --structure); estimate its times with "
                   "stagecraft estimate GRAPH --device NAME, or measure the model with " +
                       command + " -o graph.json");
}

std::string distrust_text(const Graph& graph) {
  if (!graph.quality || graph.quality->trusted) return "";
  std::string reasons;
  for (const std::string& reason : graph.quality->reasons) reasons += (reasons.empty() ? "" : "; ") + reason;
  return "the profile is not trusted: " + (reasons.empty() ? "the file gives no reason" : reasons);
}

int layer_index(const Graph& graph, const std::string& id) {
  for (std::size_t i = 0; i < graph.layers.size(); ++i) {
    if (graph.layers[i].id == id) return to_int(i);
  }
  std::vector<std::string> ids;
  for (const Layer& layer : graph.layers) ids.push_back(layer.id);
  throw InputError(ErrorKind::UnknownName, unknown_name("layer", id, ids));
}

std::string estimate_text(const Graph& graph) {
  if (!graph.estimate) return "";
  const Estimate& e = *graph.estimate;
  return "the layers' times are estimates for " + graph.device.name + " (" + e.math + "), by a roofline from " +
         (e.from.empty() ? "operations and bytes alone" : "times measured on " + e.from + " (" + e.from_math + ")");
}

Seconds compute_time(const Graph& graph) {
  Seconds sum;
  for (const Layer& layer : graph.layers) {
    if (!is_input(layer)) sum += layer.forward.median + layer.backward.median;
  }
  return sum;
}

LayersById::LayersById(const Graph& graph) : graph_(graph) {
  for (int i = 0; i < to_int(graph.layers.size()); ++i) by_id_.emplace(graph.layers[to_index(i)].id, i);
}

int LayersById::index(const std::string& id) const {
  const auto found = by_id_.find(id);
  return found == by_id_.end() ? layer_index(graph_, id) : found->second;
}

void scale(Timing& timing, double factor) {
  timing.median = timing.median * factor;
  if (timing.spread) timing.spread = *timing.spread * factor;
}

void scale(Layer& layer, double factor) {
  scale(layer.forward, factor);
  scale(layer.backward, factor);
  if (layer.accumulation) scale(*layer.accumulation, factor);
  if (layer.update) scale(*layer.update, factor);
  if (layer.backward_parts) {
    scale(layer.backward_parts->inputs, factor);
    scale(layer.backward_parts->weights, factor);
  }
}

}  // namespace stagecraft
