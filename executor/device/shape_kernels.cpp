#include "executor/device/shape_kernels.h"

#include <ATen/ExpandUtils.h>
#include <ATen/OpMathType.h>
#include <ATen/core/Reduction.h>
#include <ATen/core/Tensor.h>
#include <ATen/native/ConvUtils.h>
#include <ATen/ops/_fused_sdp_choice.h>
#include <ATen/ops/_scaled_dot_product_attention_math.h>
#include <ATen/ops/_scaled_dot_product_flash_attention_for_cpu.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/result_type.h>
#include <ATen/ops/scalar_tensor.h>
#include <ATen/ops/where.h>
#include <ATen/record_function.h>
#include <c10/core/DispatchKey.h>
#include <torch/library.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdint>
#include <optional>
#include <string_view>
#include <tuple>
#include <vector>

#include "costmodel/index.h"

namespace stagecraft::device {
namespace {

using at::IntArrayRef;
using at::Tensor;
using Two = std::tuple<Tensor, Tensor>;
using Three = std::tuple<Tensor, Tensor, Tensor>;
using OptionalTensor = const std::optional<Tensor>&;

Tensor shaped(const Tensor& like, IntArrayRef shape) { return at::empty(shape, like.options()); }

/// A gradient like `value`, where it is wanted.
Tensor wanted(bool is_wanted, const Tensor& value) { return is_wanted ? at::empty_like(value) : Tensor(); }

Tensor wanted(bool is_wanted, OptionalTensor value, const Tensor& otherwise) {
  if (!is_wanted) return {};
  return value && value->defined() ? at::empty_like(*value) : otherwise;
}

/// Mean or deviation: in the type of the weights, which stay float32 where autocast lowers the input.
Tensor statistics(const Tensor& input, OptionalTensor weight, IntArrayRef shape) {
  return at::empty(shape, weight && weight->defined() ? input.options().dtype(weight->dtype()) : input.options());
}

Tensor convolution(const Tensor& input, const Tensor& weight, OptionalTensor /*bias*/, IntArrayRef stride,
                   IntArrayRef padding, IntArrayRef dilation, bool transposed, IntArrayRef output_padding,
                   std::int64_t groups) {
  const std::vector<std::int64_t> shape =
      transposed ? at::native::conv_input_size(input.sizes(), weight.sizes(), padding, output_padding, stride, dilation,
                                               groups)
                 : at::native::conv_output_size(input.sizes(), weight.sizes(), padding, stride, dilation);
  return at::empty(shape, input.options(), input.suggest_memory_format());
}

Three convolution_backward(const Tensor& gradient, const Tensor& input, const Tensor& weight, IntArrayRef /*stride*/,
                           IntArrayRef /*padding*/, IntArrayRef /*dilation*/, bool /*transposed*/,
                           IntArrayRef /*output_padding*/, std::int64_t /*groups*/, std::array<bool, 3> mask) {
  return {wanted(mask[0], input), wanted(mask[1], weight), mask[2] ? shaped(weight, {gradient.size(1)}) : Tensor()};
}

Three batch_norm(const Tensor& input, OptionalTensor weight, OptionalTensor /*bias*/, OptionalTensor /*mean*/,
                 OptionalTensor /*variance*/, bool training, double /*momentum*/, double /*eps*/) {
  const std::int64_t channels = training ? input.size(1) : 0;
  return {at::empty_like(input), statistics(input, weight, {channels}), statistics(input, weight, {channels})};
}

Three batch_norm_backward(const Tensor& /*gradient*/, const Tensor& input, OptionalTensor weight,
                          OptionalTensor /*mean*/, OptionalTensor /*variance*/, OptionalTensor /*saved_mean*/,
                          OptionalTensor /*saved_deviation*/, bool /*training*/, double /*eps*/,
                          std::array<bool, 3> mask) {
  const Tensor channels = shaped(input, {input.size(1)});
  return {wanted(mask[0], input), wanted(mask[1], weight, channels), wanted(mask[2], weight, channels)};
}

Three layer_norm(const Tensor& input, IntArrayRef normalized, OptionalTensor weight, OptionalTensor /*bias*/,
                 double /*eps*/) {
  std::vector<std::int64_t> shape = input.sizes().vec();
  std::fill(shape.end() - to_int(normalized.size()), shape.end(), 1);
  return {at::empty_like(input, at::MemoryFormat::Contiguous), statistics(input, weight, shape),
          statistics(input, weight, shape)};
}

Three layer_norm_backward(const Tensor& /*gradient*/, const Tensor& input, IntArrayRef normalized,
                          const Tensor& /*mean*/, const Tensor& /*deviation*/, OptionalTensor weight,
                          OptionalTensor bias, std::array<bool, 3> mask) {
  const Tensor width = shaped(input, normalized);
  return {wanted(mask[0], input), wanted(mask[1], weight, width), wanted(mask[2], bias, width)};
}

Three group_norm(const Tensor& input, OptionalTensor weight, OptionalTensor /*bias*/, std::int64_t samples,
                 std::int64_t /*channels*/, std::int64_t /*area*/, std::int64_t groups, double /*eps*/) {
  return {at::empty_like(input), statistics(input, weight, {samples, groups}),
          statistics(input, weight, {samples, groups})};
}

Three group_norm_backward(const Tensor& /*gradient*/, const Tensor& input, const Tensor& /*mean*/,
                          const Tensor& /*deviation*/, OptionalTensor weight, std::int64_t /*samples*/,
                          std::int64_t channels, std::int64_t /*area*/, std::int64_t /*groups*/,
                          std::array<bool, 3> mask) {
  const Tensor values = shaped(input, {channels});
  return {wanted(mask[0], input), wanted(mask[1], weight, values), wanted(mask[2], weight, values)};
}

Tensor index_select(const Tensor& self, std::int64_t axis, const Tensor& index) {
  std::vector<std::int64_t> shape = self.sizes().vec();
  if (!shape.empty()) shape[to_index(axis < 0 ? axis + self.dim() : axis)] = index.numel();
  return shaped(self, shape);
}

Tensor embedding_backward(const Tensor& gradient, const Tensor& /*indices*/, std::int64_t rows,
                          std::int64_t /*padding*/, bool /*scaled*/) {
  return shaped(gradient, {rows, gradient.size(-1)});
}

std::vector<std::int64_t> chosen_shape(const Tensor& condition, const Tensor& self, const Tensor& other) {
  return at::infer_size(condition.sizes(), at::infer_size(self.sizes(), other.sizes()));
}

Tensor where(const Tensor& condition, const Tensor& self, const Tensor& other) {
  return at::empty(chosen_shape(condition, self, other),
                   self.options().dtype(at::result_type(self, other)).device(at::kMeta));
}

Tensor& where_out(const Tensor& condition, const Tensor& self, const Tensor& other, Tensor& out) {
  out.resize_(chosen_shape(condition, self, other));
  return out;
}

Tensor same_shape(const Tensor& self) { return at::empty_like(self); }
Tensor& same_shape_out(const Tensor& self, Tensor& out) {
  out.resize_(self.sizes());
  return out;
}
Tensor& both_shapes_out(const Tensor& self, const Tensor& other, Tensor& out) {
  out.resize_(at::infer_size(self.sizes(), other.sizes()));
  return out;
}
Tensor hard_swish_backward(const Tensor& /*gradient*/, const Tensor& self) { return at::empty_like(self); }
Tensor flip(const Tensor& self, IntArrayRef /*axes*/) { return at::empty_like(self); }
Tensor roll(const Tensor& self, IntArrayRef /*shifts*/, IntArrayRef /*axes*/) { return at::empty_like(self); }

/// Variance or standard deviation over `axes`, over all if there are none.
Tensor variance(const Tensor& self, at::OptionalIntArrayRef axes, const std::optional<at::Scalar>& /*correction*/,
                bool keep) {
  const bool all = !axes || axes->empty();
  std::vector<std::int64_t> shape;
  for (std::int64_t axis = 0; axis < self.dim(); ++axis) {
    const bool reduced = all || std::ranges::find(*axes, axis) != axes->end() ||
                         std::ranges::find(*axes, axis - self.dim()) != axes->end();
    if (!reduced) shape.push_back(self.size(axis));
    if (reduced && keep) shape.push_back(1);
  }
  return shaped(self, shape);
}

Two nll_loss2d(const Tensor& self, const Tensor& target, OptionalTensor /*weight*/, std::int64_t reduction,
               std::int64_t /*ignored*/) {
  const bool unreduced = reduction == at::Reduction::None;
  return {unreduced ? shaped(self, target.sizes()) : shaped(self, {}), shaped(self, {})};
}

Tensor nll_loss2d_backward(const Tensor& /*gradient*/, const Tensor& self, const Tensor& /*target*/,
                           OptionalTensor /*weight*/, std::int64_t /*reduction*/, std::int64_t /*ignored*/,
                           const Tensor& /*total*/) {
  return at::empty_like(self);
}

Tensor mse_loss_backward(const Tensor& /*gradient*/, const Tensor& self, const Tensor& /*target*/,
                         std::int64_t /*reduction*/) {
  return at::empty_like(self);
}

Tensor adaptive_average_pool(const Tensor& self, IntArrayRef sides) {
  std::vector<std::int64_t> shape = self.sizes().vec();
  std::copy(sides.begin(), sides.end(), shape.end() - to_int(sides.size()));
  return shaped(self, shape);
}

Tensor adaptive_average_pool_backward(const Tensor& /*gradient*/, const Tensor& self) { return at::empty_like(self); }

Two flash_attention(const Tensor& query, const Tensor& /*key*/, const Tensor& value, double /*dropout*/,
                    bool /*causal*/, OptionalTensor /*mask*/, std::optional<double> /*scale*/) {
  const std::int64_t batch = query.size(0);
  const std::int64_t heads = query.size(1);
  const std::int64_t length = query.size(2);
  const auto statistics = query.options().dtype(at::toOpMathType(query.scalar_type()));
  return {shaped(query, {batch, length, heads, value.size(3)}).transpose(1, 2),
          at::empty({batch, heads, length}, statistics)};
}

Three flash_attention_backward(const Tensor& /*gradient*/, const Tensor& query, const Tensor& key, const Tensor& value,
                               const Tensor& /*out*/, const Tensor& /*statistics*/, double /*dropout*/, bool /*causal*/,
                               OptionalTensor /*mask*/, std::optional<double> /*scale*/) {
  return {at::empty_like(query), at::empty_like(key), at::empty_like(value)};
}

/// Whether a processor has a fused kernel for this. Nobody counts what asking takes.
bool is_fused(const Tensor& query, const Tensor& key, const Tensor& value, OptionalTensor mask, double dropout,
              bool causal, std::optional<double> scale, bool grouped) {
  const at::DisableRecordFunctionGuard unseen;
  const auto untouched = [](const Tensor& t) {
    return at::empty(t.sizes(), t.options().device(at::kCPU)).requires_grad_(t.requires_grad());
  };
  const std::optional<Tensor> its_mask = mask && mask->defined() ? std::optional(untouched(*mask)) : std::nullopt;
  constexpr std::int64_t kFlash = 1;  // of LibTorch's SDPBackend
  return at::_fused_sdp_choice(untouched(query), untouched(key), untouched(value), its_mask, dropout, causal, scale,
                               grouped) == kFlash;
}

/// As on a processor, which computes most shapes in one kernel.
Tensor attention(const Tensor& query, const Tensor& key, const Tensor& value, OptionalTensor mask, double dropout,
                 bool causal, std::optional<double> scale, bool grouped) {
  std::optional<Tensor> added = mask;
  if (mask && mask->defined() && mask->scalar_type() == at::kBool)
    added = at::where(*mask, 0.0, at::scalar_tensor(-INFINITY, query.options()));
  if (is_fused(query, key, value, added, dropout, causal, scale, grouped)) {
    return std::get<0>(
        at::_scaled_dot_product_flash_attention_for_cpu(query, key, value, dropout, causal, added, scale));
  }
  return std::get<0>(
      at::_scaled_dot_product_attention_math(query, key, value, added, dropout, causal, {}, scale, grouped));
}

/// LibTorch's processors compute a whole recurrent layer in one operator, which has no kernel without memory.
Three lstm(const Tensor& /*input*/, at::TensorList /*states*/, at::TensorList /*parameters*/, bool /*biases*/,
           std::int64_t /*layers*/, double /*dropout*/, bool /*train*/, bool /*bidirectional*/, bool /*batch_first*/) {
  C10_THROW_ERROR(NotImplementedError, "aten::lstm has no kernel without memory");
}

}  // namespace

void register_shape_kernels() {
  static const bool registered = [] {
    static torch::Library meta(torch::Library::IMPL, "aten", c10::DispatchKey::Meta, __FILE__, __LINE__);
    meta.impl("convolution_overrideable", TORCH_FN(convolution));
    meta.impl("convolution_backward_overrideable", TORCH_FN(convolution_backward));
    meta.impl("native_batch_norm", TORCH_FN(batch_norm));
    meta.impl("native_batch_norm_backward", TORCH_FN(batch_norm_backward));
    meta.impl("native_layer_norm", TORCH_FN(layer_norm));
    meta.impl("native_layer_norm_backward", TORCH_FN(layer_norm_backward));
    meta.impl("native_group_norm", TORCH_FN(group_norm));
    meta.impl("native_group_norm_backward", TORCH_FN(group_norm_backward));
    meta.impl("index_select", TORCH_FN(index_select));
    meta.impl("embedding_dense_backward", TORCH_FN(embedding_backward));
    meta.impl("where.self", TORCH_FN(where));
    meta.impl("where.self_out", TORCH_FN(where_out));
    for (const char* name : {"relu", "hardswish"}) meta.impl(name, TORCH_FN(same_shape));
    for (const char* name : {"abs.out", "logical_not.out"}) meta.impl(name, TORCH_FN(same_shape_out));
    for (const char* name : {"logical_and.out", "logical_or.out", "logical_xor.out"})
      meta.impl(name, TORCH_FN(both_shapes_out));
    for (const char* name : {"var.correction", "std.correction"}) meta.impl(name, TORCH_FN(variance));
    meta.impl("hardswish_backward", TORCH_FN(hard_swish_backward));
    meta.impl("flip", TORCH_FN(flip));
    meta.impl("roll", TORCH_FN(roll));
    meta.impl("nll_loss2d_forward", TORCH_FN(nll_loss2d));
    meta.impl("nll_loss2d_backward", TORCH_FN(nll_loss2d_backward));
    meta.impl("mse_loss_backward", TORCH_FN(mse_loss_backward));
    meta.impl("_adaptive_avg_pool2d", TORCH_FN(adaptive_average_pool));
    meta.impl("_adaptive_avg_pool2d_backward", TORCH_FN(adaptive_average_pool_backward));
    meta.impl("_scaled_dot_product_flash_attention_for_cpu", TORCH_FN(flash_attention));
    meta.impl("_scaled_dot_product_flash_attention_for_cpu_backward", TORCH_FN(flash_attention_backward));
    static torch::Library differentiable(torch::Library::IMPL, "aten", c10::DispatchKey::AutogradMeta, __FILE__,
                                         __LINE__);
    differentiable.impl("scaled_dot_product_attention", TORCH_FN(attention));
    differentiable.impl("lstm.input", TORCH_FN(lstm));
    return true;
  }();
  (void)registered;
}

}  // namespace stagecraft::device
