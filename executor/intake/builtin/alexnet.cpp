#include "executor/intake/builtin/blocks.h"
#include "executor/intake/builtin/builtin_models.h"

namespace stagecraft::intake {

// Krizhevsky, "One weird trick for parallelizing convolutional neural networks", arXiv 1404.5997, with the pooling to
// 6 x 6 and the two dropouts of torchvision.
BuiltinModel alexnet_model() {
  return {"alexnet",
          "AlexNet (one weird trick), 22 layers",
          {{"classes", 10, "classes"},
           {"image", 224, "height and width of an image", 63},
           {"width", 4096, "width of the two hidden linear layers"},
           {"dropout_percent", 50, "dropout before the linear layers, in percent", 0, 99}},
          [](GraphBuilder& model, const std::map<std::string, std::int64_t>& options) {
            const std::int64_t classes = options.at("classes");
            const std::int64_t image = options.at("image");
            const std::int64_t width = options.at("width");
            const std::int64_t percent = options.at("dropout_percent");
            ValueIndex x = model.input({"image", "float32", {3, image, image}});
            x = conv2d(model, "conv1", x, {.in = 3, .out = 64, .kernel = 11, .stride = 4, .padding = 2});
            x = relu(model, "relu1", x);
            x = max_pool2d(model, "pool1", x, 3, 2);
            x = conv2d(model, "conv2", x, {.in = 64, .out = 192, .kernel = 5, .padding = 2});
            x = relu(model, "relu2", x);
            x = max_pool2d(model, "pool2", x, 3, 2);
            x = conv2d(model, "conv3", x, {.in = 192, .out = 384, .kernel = 3, .padding = 1});
            x = relu(model, "relu3", x);
            x = conv2d(model, "conv4", x, {.in = 384, .out = 256, .kernel = 3, .padding = 1});
            x = relu(model, "relu4", x);
            x = conv2d(model, "conv5", x, {.in = 256, .out = 256, .kernel = 3, .padding = 1});
            x = relu(model, "relu5", x);
            x = max_pool2d(model, "pool5", x, 3, 2);
            x = average_pool2d(model, "avgpool", x, 6);
            x = flatten(model, "flatten", x);
            x = dropout(model, "dropout6", x, percent);
            x = linear(model, "fc6", x, {.in = std::int64_t{256} * 6 * 6, .out = width});
            x = relu(model, "relu6", x);
            x = dropout(model, "dropout7", x, percent);
            x = linear(model, "fc7", x, {.in = width, .out = width});
            x = relu(model, "relu7", x);
            x = linear(model, "fc8", x, {.in = width, .out = classes});
            return cross_entropy(model, x, model.input({"target", "int64", {}, classes}));
          }};
}

}  // namespace stagecraft::intake
