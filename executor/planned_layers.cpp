#include "executor/planned_layers.h"

#include <algorithm>
#include <set>
#include <stdexcept>
#include <unordered_map>

#include "costmodel/errors.h"

namespace stagecraft {

std::vector<std::vector<int>> layers_of_stages(const Plan& plan, const Model& model) {
  std::unordered_map<std::string, int> index;
  std::vector<std::string> names;
  for (std::size_t i = 0; i < model.layers.size(); ++i) {
    index[model.layers[i].name] = static_cast<int>(i);
    names.push_back(model.layers[i].name);
  }
  std::vector<std::vector<int>> out;
  std::size_t count = 0;
  for (const Stage& stage : plan.stages) {
    std::vector<int> layers;
    for (const std::string& id : stage.layers) {
      const auto it = index.find(id);
      if (it == index.end())
        throw std::invalid_argument("model \"" + model.name + "\": " + unknown_name("layer", id, names));
      layers.push_back(it->second);
    }
    std::sort(layers.begin(), layers.end());
    count += layers.size();
    out.push_back(std::move(layers));
  }
  if (count != model.layers.size()) {
    std::set<std::string> planned;
    for (const Stage& stage : plan.stages) planned.insert(stage.layers.begin(), stage.layers.end());
    for (const std::string& name : names) {
      if (!planned.contains(name)) {
        throw std::invalid_argument("layer \"" + name + "\" of model \"" + model.name +
                                    "\" stands in no stage of the plan");
      }
    }
  }
  for (const Boundary& boundary : plan.boundaries) {
    for (const BoundaryTensor& tensor : boundary.tensors) {
      if (!tensor.output || tensor.dtype.empty()) {
        throw std::invalid_argument("the plan does not say shape and type of what layer \"" + tensor.layer +
                                    "\" sends; plan from a graph that stagecraft profile wrote");
      }
    }
  }
  return out;
}

std::map<std::string, std::vector<int>> tied_parameters(const Model& model,
                                                        const std::vector<std::vector<int>>& layers) {
  std::map<std::string, std::vector<int>> holders;
  for (std::size_t s = 0; s < layers.size(); ++s) {
    for (const int layer : layers[s]) {
      for (const ParameterSpec& parameter : model.layers[static_cast<std::size_t>(layer)].parameters) {
        auto& stages = holders[parameter.name];
        if (parameter.trainable && (stages.empty() || stages.back() != static_cast<int>(s)))
          stages.push_back(static_cast<int>(s));
      }
    }
  }
  std::erase_if(holders, [](const auto& entry) { return entry.second.size() < 2; });
  return holders;
}

}  // namespace stagecraft
