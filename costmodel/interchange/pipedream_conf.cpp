#include "costmodel/interchange/pipedream_conf.h"

#include <algorithm>
#include <map>
#include <numeric>
#include <set>
#include <stdexcept>

#include "costmodel/format/cursor.h"
#include "costmodel/index.h"

namespace stagecraft::interchange {
namespace {

constexpr int kMostRanks = 1 << 24;
constexpr const char* kModules = "module_to_stage_map";
constexpr const char* kRanks = "stage_to_rank_map";
constexpr const char* kDepths = "stage_to_depth_map";

int whole(const format::Cursor& at, std::int64_t most = kMostRanks) { return to_int(at.integer(0, most)); }

/// The values of an object whose keys are the stages "0" .. "stages - 1", in their order.
std::vector<format::Cursor> by_stage(const format::Cursor& at, std::size_t stages) {
  if (!at.value().is_object()) at.fail_type("an object with a key for each stage");
  std::vector<format::Cursor> out;
  for (std::size_t s = 0; s < stages; ++s) {
    const auto it = at.value().find(std::to_string(s));
    if (it == at.value().end()) at.fail("stage \"" + std::to_string(s) + "\" is missing");
    out.push_back(at.inside(*it));
  }
  for (const auto& [key, value] : at.value().items()) {
    const bool known =
        std::any_of(out.begin(), out.end(), [&](const format::Cursor& c) { return &c.value() == &value; });
    if (!known) at.fail("found stage \"" + key + "\", expected 0.." + std::to_string(stages - 1));
  }
  return out;
}

std::vector<int> read_modules(const format::Cursor& at) {
  const std::vector<int> out = at.list([](const format::Cursor& c) { return whole(c); });
  if (out.size() < 2)
    at.fail("found " + std::to_string(out.size()) + " modules, expected at least one for a stage and one for the loss");
  const int last = *std::max_element(out.begin(), out.end());
  const std::set<int> used(out.begin(), out.end() - 1);
  for (int s = 0, n = to_int(used.size()); s < n; ++s) {
    if (!used.contains(s)) at.fail("stage " + std::to_string(s) + " has no module, but a later stage does");
  }
  if (out.back() != last) {
    at.at(out.size() - 1)
        .fail("found stage " + std::to_string(out.back()) + " for the loss, expected the last one, " +
              std::to_string(last));
  }
  if (!used.contains(last)) at.fail("stage " + std::to_string(last) + " has no module except the loss");
  return out;
}

std::vector<std::vector<int>> read_ranks(const format::Cursor& at, std::size_t stages) {
  std::vector<std::vector<int>> out;
  std::set<int> seen;
  std::size_t count = 0;
  const std::vector<format::Cursor> lists = by_stage(at, stages);
  for (const format::Cursor& list : lists) count += list.elements();
  for (const format::Cursor& list : lists) {
    if (list.elements() == 0) list.fail("found no rank, expected at least one");
    out.push_back(list.list([&](const format::Cursor& c) {
      const int rank = whole(c, static_cast<std::int64_t>(count) - 1);
      if (!seen.insert(rank).second) c.fail("rank " + std::to_string(rank) + " appears twice");
      return rank;
    }));
  }
  return out;
}

std::string list_text(const std::vector<int>& values) {
  std::string out;
  for (const int value : values) out += (out.empty() ? "" : ", ") + std::to_string(value);
  return "[" + out + "]";
}

template <class Value, class Text>
std::string map_text(const std::vector<Value>& values, Text text) {
  std::string out;
  for (std::size_t s = 0; s < values.size(); ++s) {
    out += (s == 0 ? "\"" : ", \"") + std::to_string(s) + "\": " + text(values[s]);
  }
  return "{" + out + "}";
}

std::vector<int> up_to(int count) {
  std::vector<int> out(to_index(count));
  std::iota(out.begin(), out.end(), 0);
  return out;
}

}  // namespace

PipedreamConf parse_pipedream_conf(const std::string& text, const std::string& file) {
  const format::Json json = format::parse_document(text, file);
  format::Fields fields(format::Cursor(json, file));
  PipedreamConf out;
  out.module_to_stage = read_modules(fields.required(kModules));
  const std::size_t stages = to_index(out.module_to_stage.back()) + 1;
  out.ranks = read_ranks(fields.required(kRanks), stages);
  if (const auto depths = fields.optional(kDepths)) {
    for (const format::Cursor& depth : by_stage(*depths, stages)) out.depths.push_back(whole(depth));
  }
  fields.done();
  return out;
}

std::string pipedream_conf_text(const PipedreamConf& conf) {
  std::string out = "{\n    \"" + std::string(kModules) + "\": " + list_text(conf.module_to_stage) + ",\n    \"" +
                    kRanks + "\": " + map_text(conf.ranks, list_text);
  if (!conf.depths.empty()) {
    out += ",\n    \"" + std::string(kDepths) +
           "\": " + map_text(conf.depths, [](int depth) { return std::to_string(depth); });
  }
  return out + "\n}\n";
}

PipedreamConfs pipedream_confs(const std::vector<std::vector<int>>& ranks_of_stages) {
  const int stages = to_int(ranks_of_stages.size());
  std::set<int> all;
  PipedreamConfs out;
  out.model_parallel.module_to_stage = up_to(stages);
  out.model_parallel.module_to_stage.push_back(stages - 1);
  out.hybrid.module_to_stage = out.model_parallel.module_to_stage;
  out.hybrid.ranks = ranks_of_stages;
  for (int s = 0; s < stages; ++s) {
    out.model_parallel.ranks.push_back({s});
    all.insert(ranks_of_stages[to_index(s)].begin(), ranks_of_stages[to_index(s)].end());
  }
  out.data_parallel.module_to_stage.assign(to_index(stages) + 1, 0);
  out.data_parallel.ranks = {{all.begin(), all.end()}};
  return out;
}

PipedreamConfs pipedream_confs(const Plan& plan, bool depths) {
  if (plan.chunks > 1) {
    throw std::invalid_argument("the plan has " + std::to_string(plan.chunks) +
                                " stages on each device, PipeDream's runtime runs one on each rank");
  }
  std::set<int> devices;
  for (const Stage& stage : plan.stages) devices.insert(stage.devices.begin(), stage.devices.end());
  std::map<int, int> rank_of_device;
  for (const int device : devices) rank_of_device.emplace(device, to_int(rank_of_device.size()));
  std::vector<std::vector<int>> ranks;
  for (const Stage& stage : plan.stages) {
    std::vector<int>& stage_ranks = ranks.emplace_back();
    for (const int device : stage.devices) stage_ranks.push_back(rank_of_device.at(device));
  }
  PipedreamConfs out = pipedream_confs(ranks);
  if (depths) out.hybrid.depths = plan.warmups;
  return out;
}

std::vector<std::string> pipedream_conf_warnings(const Plan& plan) {
  std::vector<std::string> out;
  if (plan.schedule != "pipedream") {
    out.push_back("PipeDream runs 1f1b without a flush, the plan's schedule \"" + plan.schedule + "\" is lost");
  }
  if (std::any_of(plan.stages.begin(), plan.stages.end(), [](const Stage& s) { return s.recompute; })) {
    out.emplace_back("the plan's recomputation is lost");
  }
  if (plan.dtype == "float16" || plan.dtype == "bfloat16") {
    out.push_back("PipeDream's runtime does not run pipelines in " + plan.dtype);
  }
  std::map<std::pair<std::string, int>, int> readers;
  for (const Boundary& boundary : plan.boundaries) {
    for (const BoundaryTensor& tensor : boundary.tensors) {
      if (++readers[{tensor.layer, tensor.output.value_or(-1)}] == 2) {
        out.push_back("two later stages read layer \"" + tensor.layer +
                      "\", PipeDream's runtime delivers it only to the last one");
      }
    }
  }
  return out;
}

Graph staged_graph(Graph graph, const Plan& plan) {
  for (Layer& layer : graph.layers) layer.stage = is_input(layer) ? std::optional<int>(0) : std::nullopt;
  const auto stages = layers_of_stages(graph, plan);
  for (std::size_t s = 0; s < stages.size(); ++s) {
    for (const Layer* layer : stages[s]) graph.layers[to_index(to_int(layer - graph.layers.data()))].stage = to_int(s);
  }
  for (const Layer& layer : graph.layers) {
    if (!layer.stage) throw std::invalid_argument("layer \"" + layer.id + "\" of the graph is not in any stage");
  }
  return graph;
}

Partition pipedream_conf_partition(const PipedreamConf& conf, const Graph& graph) {
  const int modules = to_int(conf.module_to_stage.size()) - 1;
  Partition out;
  int most = -1;
  for (const Layer& layer : graph.layers) {
    if (is_input(layer)) {
      out.stage_of_layer.push_back(-1);
      continue;
    }
    if (!layer.stage) {
      throw std::invalid_argument(
          "layer \"" + layer.id +
          "\" of the graph has no stage; use the graph with stage ids from which the configuration was made");
    }
    most = std::max(most, *layer.stage);
    out.stage_of_layer.push_back(*layer.stage < modules ? conf.module_to_stage[to_index(*layer.stage)] : -1);
  }
  if (most != modules - 1) {
    throw std::invalid_argument("found " + std::to_string(modules) +
                                " modules besides the loss, the graph has the stages 0.." + std::to_string(most));
  }
  for (const auto& ranks : conf.ranks) out.replicas.push_back(to_int(ranks.size()));
  return out;
}

}  // namespace stagecraft::interchange
