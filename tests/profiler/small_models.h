#pragma once

#include <map>
#include <numeric>
#include <string>
#include <vector>

#include "executor/data/data_source.h"
#include "executor/intake/layer_sources.h"
#include "executor/stage/stage_program.h"
#include "profiler/subject/watch.h"
#include "tests/support/models/small_builtin_models.h"

namespace stagecraft {

/// A model as one stage, with a microbatch of 2.
struct Whole {
  explicit Whole(model::Model m) : model(std::move(m)), program(model, layers(model), {}, {}, 1) {
    batch = data::make_data_source("synthetic", model, 1)->batch(0, 0, 1, 2, program.data_inputs());
  }
  static std::vector<int> layers(const model::Model& model) {
    std::vector<int> out(model.layers.size());
    std::iota(out.begin(), out.end(), 0);
    return out;
  }
  stage::Flight forward(stage::LayerObserver* observer) { return program.forward({}, batch, 0, 0, true, observer); }
  std::int64_t count() const { return static_cast<std::int64_t>(model.layers.size()); }

  model::Model model;
  stage::StageProgram program;
  std::vector<at::Tensor> batch;
};

/// One watched step of `whole`.
inline void run_step(Whole& whole, profiler::Watch& watch, int step = 0) {
  watch.begin_step(step);
  stage::Flight flight = whole.forward(&watch);
  watch.begin_backward();
  (void)whole.program.backward(std::move(flight), {});
  watch.end_backward();
  watch.end_step();
}

inline model::Model tiny_mlp() {
  return intake::build_model("mlp", {{"inputs", "4"}, {"width", "8"}, {"layers", "2"}, {"classes", "3"}});
}

}  // namespace stagecraft
