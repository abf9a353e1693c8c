#include "executor/intake/builtin/blocks.h"
#include "executor/intake/builtin/builtin_models.h"

namespace stagecraft::intake {

BuiltinModel mlp_model() {
  return {"mlp",
          "multi-layer perceptron of Linear and ReLU layers",
          {{"inputs", 784, "values of one sample"},
           {"width", 1024, "width of the hidden layers"},
           {"layers", 4, "linear layers"},
           {"classes", 10, "classes"}},
          [](GraphBuilder& model, const std::map<std::string, std::int64_t>& options) {
            const std::int64_t layers = options.at("layers");
            const std::int64_t classes = options.at("classes");
            ValueIndex x = model.input({"image", "float32", {options.at("inputs")}});
            std::int64_t width = options.at("inputs");
            for (std::int64_t i = 1; i <= layers; ++i) {
              const std::int64_t out = i == layers ? classes : options.at("width");
              x = linear(model, "fc" + std::to_string(i), x, {.in = width, .out = out});
              if (i < layers) x = relu(model, "relu" + std::to_string(i), x);
              width = out;
            }
            return cross_entropy(model, x, model.input({"target", "int64", {}, classes}));
          }};
}

}  // namespace stagecraft::intake
