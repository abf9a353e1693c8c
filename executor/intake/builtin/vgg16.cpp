#include "executor/intake/builtin/blocks.h"
#include "executor/intake/builtin/builtin_models.h"

namespace stagecraft::intake {
namespace {

// Simonyan & Zisserman, arXiv 1409.1556, configuration D, with torchvision's initialisation and pooling to 7 x 7.
constexpr double kLinearDeviation = 0.01;

struct ConvGroup {
  int convolutions;
  std::int64_t times;  ///< the channels of the first group
};
constexpr ConvGroup kGroups[] = {{2, 1}, {2, 2}, {3, 4}, {3, 8}, {3, 8}};

ValueIndex build(GraphBuilder& model, const std::map<std::string, std::int64_t>& options) {
  const std::int64_t classes = options.at("classes");
  const std::int64_t image = options.at("image");
  const std::int64_t width = options.at("width");
  const std::int64_t percent = options.at("dropout_percent");
  ValueIndex x = model.input({"image", "float32", {3, image, image}});
  std::int64_t channels = 3;
  int number = 0;
  for (const ConvGroup& group : kGroups) {
    const std::int64_t out = group.times * options.at("channels");
    const std::string prefix = std::to_string(++number);
    for (int i = 1; i <= group.convolutions; ++i) {
      const std::string place = prefix + "_" + std::to_string(i);
      x = conv2d(model, "conv" + place, x, {.in = channels, .out = out, .kernel = 3, .padding = 1, .kaiming = true});
      x = relu(model, "relu" + place, x);
      channels = out;
    }
    x = max_pool2d(model, "pool" + prefix, x, 2, 2);
  }
  x = average_pool2d(model, "avgpool", x, 7);
  x = flatten(model, "flatten", x);
  x = linear(model, "fc6", x, {.in = channels * 7 * 7, .out = width, .deviation = kLinearDeviation});
  x = relu(model, "relu6", x);
  x = dropout(model, "dropout6", x, percent);
  x = linear(model, "fc7", x, {.in = width, .out = width, .deviation = kLinearDeviation});
  x = relu(model, "relu7", x);
  x = dropout(model, "dropout7", x, percent);
  x = linear(model, "fc8", x, {.in = width, .out = classes, .deviation = kLinearDeviation});
  return cross_entropy(model, x, model.input({"target", "int64", {}, classes}));
}

}  // namespace

BuiltinModel vgg16_model() {
  return {"vgg16",
          "VGG with 16 weight layers, without batch norm",
          {{"classes", 1000, "classes"},
           {"image", 224, "height and width of an image", 32},
           {"channels", 64, "channels of the first group; the others have 2, 4, 8 and 8 times as many"},
           {"width", 4096, "width of the two hidden linear layers"},
           {"dropout_percent", 50, "dropout after the linear layers, in percent", 0, 99}},
          build};
}

}  // namespace stagecraft::intake
