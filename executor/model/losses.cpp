#include "executor/model/losses.h"

#include <ATen/ops/binary_cross_entropy_with_logits.h>
#include <ATen/ops/cross_entropy_loss.h>
#include <ATen/ops/mse_loss.h>
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <stdexcept>

#include "costmodel/errors.h"
#include "costmodel/index.h"
#include "executor/device/dtype.h"

namespace stagecraft::model {
namespace {

constexpr const char* kLayer = "loss";
constexpr const char* kTarget = "target";

[[noreturn]] void refuse(const Model& model, const std::string& loss, const LossOutput& output,
                         const std::string& wanted) {
  throw InputError(ErrorKind::UnsupportedModel,
                   fmt::format("loss {}: the output of model {} is {} [{}] per sample, expected {}", loss, model.name,
                               device::dtype_name(output.dtype), fmt::join(output.shape, ", "), wanted));
}

/// Appends an input "target" with the output's batch axis.
ValueRef append_target(Model& model, const LossOutput& output, const std::string& dtype,
                       std::vector<std::int64_t> shape, std::int64_t classes = 0) {
  if (std::ranges::find(model.inputs, kTarget, &ModelInput::name) != model.inputs.end())
    throw InputError(ErrorKind::UnsupportedModel,
                     fmt::format("model {} already has an input \"{}\"; use loss none", model.name, kTarget));
  ModelInput target{.name = kTarget, .dtype = dtype, .shape = std::move(shape), .classes = classes};
  target.batch_axis = output.batch_axis;
  return append(model, std::move(target));
}

using LossFunction = std::function<at::Tensor(const at::Tensor& output, const at::Tensor& target)>;

void append_layer(Model& model, const std::string& kind, ValueRef output, ValueRef target, LossFunction function) {
  append(model, {.name = kLayer,
                 .kind = kind,
                 .inputs = {output, target},
                 .parameters = {},
                 .forward = [function = std::move(function)](const LayerCall& call) -> std::vector<at::Tensor> {
                   return {function(call.inputs[0], call.inputs[1])};
                 }});
}

void append_cross_entropy(Model& model, const LossOutput& output) {
  const auto& shape = output.shape;
  const bool sequence = shape.size() == 2;  // its classes are on the last axis, else on axis 1
  if (shape.empty() || (!sequence && output.batch_axis != 0) || output.batch_axis > 1)
    refuse(model, "cross_entropy", output,
           "[classes], [positions, classes] or [classes, height, width], samples first");
  std::vector<std::int64_t> target = shape;
  target.erase(sequence ? target.end() - 1 : target.begin());
  const std::int64_t classes = sequence ? shape.back() : shape.front();
  const ValueRef input = append_target(model, output, "int64", std::move(target), classes);
  append_layer(model, "CrossEntropyLoss", output.value, input, [sequence](const at::Tensor& x, const at::Tensor& y) {
    return sequence ? at::cross_entropy_loss(x.flatten(0, 1), y.flatten()) : at::cross_entropy_loss(x, y);
  });
}

void append_next_token(Model& model, const LossOutput& output, const std::string& tokens) {
  if (output.shape.size() != 2 || output.shape[0] < 2 || output.batch_axis > 1)
    refuse(model, "next_token", output, "[positions, classes] with at least 2 positions");
  std::vector<std::string> known;
  for (const ModelInput& input : model.inputs) known.push_back(input.name);
  const auto found = std::ranges::find(known, tokens);
  if (found == known.end())
    throw InputError(ErrorKind::UnknownName, "loss next_token: " + unknown_name("input", tokens, known));
  const auto at = to_int(found - known.begin());
  const ModelInput& input = model.inputs[to_index(at)];
  const std::vector<std::int64_t> wanted{output.shape[0]};
  if (input.derive || input.shape != wanted || input.batch_axis != output.batch_axis ||
      !at::isIntegralType(device::dtype_of(input.dtype), /*includeBool=*/false)) {
    throw InputError(
        ErrorKind::UnsupportedModel,
        fmt::format("loss next_token: input \"{}\" of model {} is {} [{}] per sample, expected integers [{}]: one "
                    "token per position of the output, with samples on the same axis",
                    input.name, model.name, input.dtype, fmt::join(input.shape, ", "), output.shape[0]));
  }
  const int positions = 1 - output.batch_axis;
  append_layer(model, "NextTokenLoss", output.value, {.input = at},
               [positions](const at::Tensor& x, const at::Tensor& y) {
                 const std::int64_t pairs = x.size(positions) - 1;
                 return at::cross_entropy_loss(x.narrow(positions, 0, pairs).flatten(0, 1),
                                               y.narrow(positions, 1, pairs).flatten().to(at::kLong));
               });
}

}  // namespace

const std::vector<Loss>& losses() {
  static const std::vector<Loss> table{
      {"cross_entropy", "cross entropy of class scores (axis 1; last axis of sequences) against the input target"},
      {"next_token", "cross entropy of each position against the next token"},
      {"mse", "mean squared error against the input target, of the output's shape"},
      {"bce", "binary cross entropy with logits against the input target, of the output's shape"},
      {"none", "the model returns its loss"},
  };
  return table;
}

void append_loss(Model& model, const std::string& name, const LossOutput& output, const std::string& tokens) {
  if (std::ranges::find(losses(), name, &Loss::name) == losses().end()) {
    std::vector<std::string> known;
    for (const Loss& loss : losses()) known.push_back(loss.name);
    throw InputError(ErrorKind::UnknownName, unknown_name("loss", name, known));
  }
  if (!at::isFloatingType(output.dtype)) refuse(model, name, output, "a floating type");
  if (name == "none") {
    if (!output.shape.empty()) refuse(model, name, output, "a single number");
    return;
  }
  if (std::ranges::find(model.layers, kLayer, &LayerSpec::name) != model.layers.end())
    throw InputError(ErrorKind::UnsupportedModel,
                     fmt::format("model {} already has a layer \"{}\"; use loss none", model.name, kLayer));
  if (name == "cross_entropy") return append_cross_entropy(model, output);
  if (name == "next_token") return append_next_token(model, output, tokens);
  const ValueRef target = append_target(model, output, device::dtype_name(output.dtype), output.shape);
  if (name == "mse") {
    append_layer(model, "MSELoss", output.value, target,
                 [](const at::Tensor& x, const at::Tensor& y) { return at::mse_loss(x, y); });
  } else {
    append_layer(model, "BCEWithLogitsLoss", output.value, target,
                 [](const at::Tensor& x, const at::Tensor& y) { return at::binary_cross_entropy_with_logits(x, y); });
  }
}

}  // namespace stagecraft::model
