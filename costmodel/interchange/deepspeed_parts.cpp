#include "costmodel/interchange/deepspeed_parts.h"

#include <fmt/format.h>

#include <algorithm>
#include <stdexcept>

#include "costmodel/format/cursor.h"
#include "costmodel/format/escaping.h"
#include "costmodel/index.h"
#include "costmodel/plan.h"

namespace stagecraft::interchange {
namespace {

constexpr std::int64_t kMostLayers = 1 << 24;

bool is_loss(const std::string& id) {
  const std::string last = id.substr(id.rfind('.') + 1);
  return last == "loss" || last == "criterion";
}

std::vector<int> read_parts(const format::Cursor& at) {
  std::vector<int> out;
  for (std::size_t i = 0; i < at.elements(); ++i) {
    const format::Cursor bound = at.at(i);
    const std::int64_t found = bound.integer(0, kMostLayers);
    if (i == 0 && found != 0) bound.fail_type("0, where the first stage begins");
    if (i > 0 && found <= out.back()) {
      bound.fail_type("a bound above " + std::to_string(out.back()) + ", a stage has at least one layer");
    }
    out.push_back(to_int(found));
  }
  if (out.size() < 2) at.fail("found " + std::to_string(out.size()) + " bounds, expected at least two");
  return out;
}

constexpr const char* kModule = R"py("""DeepSpeed's PipelineModule with the stages of a stagecraft plan.

Use it in place of PipelineModule; it ignores partition_method:

    model = PlannedPipelineModule(layers=layers, loss_fn=loss_fn, num_stages={stages})

`layers` are those of LAYERS, in this order; stage s builds layers[PARTS[s]:PARTS[s + 1]].
"""

from deepspeed.pipe import PipelineModule

PARTS = [{parts}]
LAYERS = [
{layers}]

class PlannedPipelineModule(PipelineModule):
    def _partition_layers(self, method="uniform"):
        stages = self._topo.get_dim("pipe")
        if stages != len(PARTS) - 1:
            raise ValueError(f"found num_stages={{stages}}, the plan has {{len(PARTS) - 1}}")
        if len(self._layer_specs) != PARTS[-1]:
            raise ValueError(f"found {{len(self._layer_specs)}} layers, the plan has {{PARTS[-1]}}: {{LAYERS}}")
        self.parts = list(PARTS)
        stage = self._topo.get_coord(self.global_rank).pipe
        self._set_bounds(start=PARTS[stage], stop=PARTS[stage + 1])
)py";

}  // namespace

DeepspeedParts parse_deepspeed_parts(const std::string& text, const std::string& file) {
  const format::Json json = format::parse_document(text, file);
  const format::Cursor root(json, file);
  DeepspeedParts out;
  if (json.is_array()) {
    out.parts = read_parts(root);
    return out;
  }
  format::Fields fields(root);
  if (const auto method = fields.optional("partition_method")) (void)method->text();
  out.parts = read_parts(fields.required("parts"));
  if (const auto layers = fields.optional("layers")) {
    out.layers = layers->list([](const format::Cursor& c) { return c.text(); });
    if (to_int(out.layers.size()) != out.parts.back()) {
      layers->fail("found " + std::to_string(out.layers.size()) + " layers, the last bound is " +
                   std::to_string(out.parts.back()));
    }
  }
  fields.done();
  return out;
}

std::string deepspeed_parts_json(const DeepspeedParts& parts) {
  format::Json out;
  out["parts"] = parts.parts;
  if (!parts.layers.empty()) out["layers"] = parts.layers;
  return format::dump(out);
}

DeepspeedParts deepspeed_parts(const BoundPlan& bound) {
  const Plan& plan = bound.plan();
  if (plan.chunks > 1) {
    throw std::invalid_argument("the plan has " + std::to_string(plan.chunks) +
                                " stages on each device, a PipelineModule has one");
  }
  DeepspeedParts out;
  out.parts.push_back(0);
  const std::size_t replicas = plan.stages.front().devices.size();
  for (std::size_t s = 0; s < plan.stages.size(); ++s) {
    const Stage& stage = plan.stages[s];
    if (stage.devices.size() != replicas) {
      throw std::invalid_argument("stage " + std::to_string(s) + " has " + std::to_string(stage.devices.size()) +
                                  " replicas and stage 0 has " + std::to_string(replicas) +
                                  ", but DeepSpeed needs the same number for every stage");
    }
    out.layers.insert(out.layers.end(), stage.layers.begin(), stage.layers.end());
    out.parts.push_back(to_int(out.layers.size()));
  }
  if (const auto far = far_reader(bound)) {
    throw std::invalid_argument("layer \"" + far->layer + "\" of stage " + std::to_string(far->stage) +
                                " is read in stage " + std::to_string(far->reader) +
                                ", but a PipelineModule passes a stage's output only to the next stage");
  }
  if (is_loss(out.layers.back())) {
    if (plan.stages.back().layers.size() == 1) {
      throw std::invalid_argument("the last stage has only \"" + out.layers.back() +
                                  "\", which is the PipelineModule's loss_fn and not a layer");
    }
    out.layers.pop_back();
    --out.parts.back();
  }
  return out;
}

std::string deepspeed_module(const DeepspeedParts& parts) {
  std::string layers;
  std::size_t stage = 0;
  for (std::size_t i = 0; i < parts.layers.size(); ++i) {
    if (to_int(i) == parts.parts[stage]) layers += fmt::format("    # stage {}\n", stage++);
    layers += "    " + format::json_string(parts.layers[i]) + ",\n";
  }
  return fmt::format(kModule, fmt::arg("stages", parts.parts.size() - 1),
                     fmt::arg("parts", fmt::format("{}", fmt::join(parts.parts, ", "))), fmt::arg("layers", layers));
}

Partition deepspeed_partition(const DeepspeedParts& parts, const Graph& graph) {
  const std::vector<std::string> ids = layer_ids(graph);
  const int count = to_int(ids.size());
  std::vector<int> bounds = parts.parts;
  const bool loss_apart = bounds.back() == count - 1 && is_loss(ids.back());
  if (bounds.back() != count && !loss_apart) {
    throw std::invalid_argument("found " + std::to_string(bounds.back()) + " layers, graph \"" + graph.name +
                                "\" has " + std::to_string(count));
  }
  for (std::size_t i = 0; i < parts.layers.size(); ++i) {
    if (parts.layers[i] == ids[i]) continue;
    throw std::invalid_argument("found \"" + parts.layers[i] + "\" as layer " + std::to_string(i) + ", graph \"" +
                                graph.name + "\" has \"" + ids[i] + "\" there");
  }
  bounds.back() = count;
  return partition_of_bounds(graph, bounds);
}

}  // namespace stagecraft::interchange
