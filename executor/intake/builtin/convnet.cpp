#include "executor/intake/builtin/blocks.h"
#include "executor/intake/builtin/builtin_models.h"

namespace stagecraft::intake {

BuiltinModel convnet_model() {
  return {"convnet",
          "small convolutional network for Fashion-MNIST",
          {{"channels", 32, "channels of the first convolution; the second has twice as many"},
           {"width", 256, "width of the hidden linear layer"},
           {"classes", 10, "classes"},
           {"dropout_percent", 25, "dropout before the last layer, in percent", 0, 99}},
          [](GraphBuilder& model, const std::map<std::string, std::int64_t>& options) {
            const std::int64_t channels = options.at("channels");
            const std::int64_t width = options.at("width");
            const std::int64_t classes = options.at("classes");
            ValueIndex x = model.input({"image", "float32", {1, 28, 28}});
            x = conv2d(model, "conv1", x, {.in = 1, .out = channels, .kernel = 3, .padding = 1});
            x = relu(model, "relu1", x);
            x = max_pool2d(model, "pool1", x, 2, 2);
            x = conv2d(model, "conv2", x, {.in = channels, .out = 2 * channels, .kernel = 3, .padding = 1});
            x = relu(model, "relu2", x);
            x = max_pool2d(model, "pool2", x, 2, 2);
            x = flatten(model, "flatten", x);
            x = linear(model, "fc1", x, {.in = 2 * channels * 7 * 7, .out = width});
            x = relu(model, "relu3", x);
            x = dropout(model, "dropout", x, options.at("dropout_percent"));
            x = linear(model, "fc2", x, {.in = width, .out = classes});
            return cross_entropy(model, x, model.input({"target", "int64", {}, classes}));
          }};
}

}  // namespace stagecraft::intake
