#include "executor/model/stage_layers.h"

#include <fmt/format.h>

#include <algorithm>
#include <limits>
#include <set>
#include <stdexcept>
#include <string>
#include <unordered_map>
#include <utility>

#include "costmodel/errors.h"
#include "costmodel/index.h"

namespace stagecraft::model {

std::vector<std::vector<int>> layers_of_stages(const Plan& plan, const Model& model) {
  std::unordered_map<std::string, int> index;
  std::vector<std::string> names;
  for (std::size_t i = 0; i < model.layers.size(); ++i) {
    index[model.layers[i].name] = to_int(i);
    names.push_back(model.layers[i].name);
  }
  std::vector<std::vector<int>> out;
  std::size_t count = 0;
  for (const Stage& stage : plan.stages) {
    std::vector<int> layers;
    for (const std::string& id : stage.layers) {
      const auto it = index.find(id);
      if (it == index.end()) {
        const auto merged = model.merged.find(id);
        throw InputError(ErrorKind::UnknownName,
                         "model \"" + model.name + "\": " +
                             (merged == model.merged.end() ? unknown_name("layer", id, names)
                                                           : "layer \"" + id + "\" " + merged->second));
      }
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
        throw InputError(ErrorKind::OtherModel,
                         "layer \"" + name + "\" of model \"" + model.name + "\" is not in any stage of the plan");
      }
    }
  }
  for (const Boundary& boundary : plan.boundaries) {
    for (const BoundaryTensor& tensor : boundary.tensors) {
      if (!tensor.output || tensor.dtype.empty()) {
        throw InputError(ErrorKind::OtherModel, "the plan lacks shape and type of the output of layer \"" +
                                                    tensor.layer +
                                                    "\"; make it from a graph written by stagecraft profile");
      }
    }
  }
  return out;
}

void check_samples(const Model& model, std::int64_t samples) {
  const std::int64_t least = model.least_samples;
  const std::int64_t most = model.most_samples;
  if (samples >= least && samples <= most) return;
  if (least == most) {
    throw InputError(
        ErrorKind::WrongMicrobatch,
        fmt::format("{} was exported for a microbatch of {}, found {}; export it with a dynamic batch size, or use "
                    "microbatches of {}",
                    model.name, least, samples, least));
  }
  const std::string bounds = most == std::numeric_limits<std::int64_t>::max() ? fmt::format("{} or more", least)
                                                                              : fmt::format("{} to {}", least, most);
  throw InputError(ErrorKind::WrongMicrobatch,
                   fmt::format("{} was exported for a microbatch of {}, found {}", model.name, bounds, samples));
}

}  // namespace stagecraft::model
