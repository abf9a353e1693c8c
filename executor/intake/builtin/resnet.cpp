#include <array>

#include "executor/intake/builtin/blocks.h"
#include "executor/intake/builtin/builtin_models.h"

namespace stagecraft::intake {
namespace {

// He, Zhang, Ren & Sun, arXiv 1512.03385, table 1; the stride of a bottleneck is on its 3 x 3 convolution, as in
// torchvision ("ResNet v1.5").
struct ResNetShape {
  bool bottleneck = false;
  std::array<int, 4> blocks{};
};

/// Convolution and batch norm: modules "<name>" and "<norm>".
ValueIndex conv_norm(GraphBuilder& model, const std::string& name, const std::string& norm, ValueIndex in,
                     ConvShape shape) {
  shape.bias = false;
  shape.kaiming = true;
  return batch_norm2d(model, norm, conv2d(model, name, in, shape), shape.out);
}

/// Two 3 x 3 convolutions of `width`, or 1 x 1, 3 x 3 and 1 x 1 to four times `width`, and the residual connection.
ValueIndex residual(GraphBuilder& model, const std::string& name, ValueIndex in, std::int64_t channels,
                    std::int64_t width, std::int64_t stride, bool bottleneck) {
  const std::int64_t out = bottleneck ? 4 * width : width;
  ValueIndex x = in;
  if (bottleneck) {
    x = conv_norm(model, name + ".conv1", name + ".bn1", x, {.in = channels, .out = width});
    x = relu(model, name + ".relu1", x);
    x = conv_norm(model, name + ".conv2", name + ".bn2", x,
                  {.in = width, .out = width, .kernel = 3, .stride = stride, .padding = 1});
    x = relu(model, name + ".relu2", x);
    x = conv_norm(model, name + ".conv3", name + ".bn3", x, {.in = width, .out = out});
  } else {
    x = conv_norm(model, name + ".conv1", name + ".bn1", x,
                  {.in = channels, .out = width, .kernel = 3, .stride = stride, .padding = 1});
    x = relu(model, name + ".relu1", x);
    x = conv_norm(model, name + ".conv2", name + ".bn2", x, {.in = width, .out = width, .kernel = 3, .padding = 1});
  }
  ValueIndex around = in;
  if (stride != 1 || channels != out)
    around = conv_norm(model, name + ".downsample.0", name + ".downsample.1", in,
                       {.in = channels, .out = out, .stride = stride});
  return relu(model, name + ".relu", add(model, name + ".add", x, around));
}

ValueIndex build(GraphBuilder& model, const ResNetShape& shape, const std::map<std::string, std::int64_t>& options) {
  const std::int64_t classes = options.at("classes");
  const std::int64_t image = options.at("image");
  const std::int64_t narrowest = options.at("channels");
  ValueIndex x = model.input({"image", "float32", {3, image, image}});
  x = conv_norm(model, "conv1", "bn1", x, {.in = 3, .out = narrowest, .kernel = 7, .stride = 2, .padding = 3});
  x = relu(model, "relu", x);
  x = max_pool2d(model, "maxpool", x, 3, 2, 1);
  std::int64_t channels = narrowest;
  for (std::size_t stage = 0; stage < shape.blocks.size(); ++stage) {
    const std::int64_t width = narrowest << stage;
    for (int i = 0; i < shape.blocks[stage]; ++i) {
      const std::string name = "layer" + std::to_string(stage + 1) + "." + std::to_string(i);
      x = residual(model, name, x, channels, width, stage > 0 && i == 0 ? 2 : 1, shape.bottleneck);
      channels = shape.bottleneck ? 4 * width : width;
    }
  }
  x = average_pool2d(model, "avgpool", x, 1);
  x = flatten(model, "flatten", x);
  x = linear(model, "fc", x, {.in = channels, .out = classes});
  return cross_entropy(model, x, model.input({"target", "int64", {}, classes}));
}

BuiltinModel resnet(const std::string& name, const std::string& help, const ResNetShape& shape) {
  return {name,
          help,
          {{"classes", 1000, "classes"},
           {"image", 224, "height and width of an image", 32},
           {"channels", 64, "channels of the first stage; each later stage doubles them"}},
          [shape](GraphBuilder& model, const std::map<std::string, std::int64_t>& options) {
            return build(model, shape, options);
          }};
}

}  // namespace

BuiltinModel resnet18_model() {
  return resnet("resnet18", "residual network, 18 weight layers", {.bottleneck = false, .blocks = {2, 2, 2, 2}});
}

BuiltinModel resnet50_model() {
  return resnet("resnet50", "residual network with bottlenecks, 50 weight layers",
                {.bottleneck = true, .blocks = {3, 4, 6, 3}});
}

}  // namespace stagecraft::intake
