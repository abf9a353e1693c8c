#include "executor/intake/graph/dry_sizes.h"

#include <algorithm>

namespace stagecraft::intake {

std::optional<SizeExpression> affine(const DryRuns& runs, std::span<const std::int64_t> found) {
  const auto& samples = runs.samples;
  if (found.empty() || found.size() != samples.size()) return std::nullopt;
  // Two runs with different numbers of samples determine the line.
  std::int64_t slope = 0;
  for (std::size_t i = 1; i < samples.size(); ++i) {
    const std::int64_t more = samples[i] - samples[0];
    if (more == 0) continue;
    if ((found[i] - found[0]) % more != 0) return std::nullopt;
    slope = (found[i] - found[0]) / more;
    break;
  }
  const std::int64_t rest = found[0] - slope * samples[0];
  for (std::size_t i = 0; i < samples.size(); ++i) {
    if (found[i] != slope * samples[i] + rest) return std::nullopt;
  }
  if (slope == 0) return SizeExpression(rest);
  SizeExpression out;
  out.kind = SizeExpression::Kind::Symbol;
  out.symbol = kBatch;
  if (slope != 1) {
    SizeExpression product;
    product.kind = SizeExpression::Kind::Multiply;
    product.parts = {SizeExpression(slope), std::move(out)};
    out = std::move(product);
  }
  if (rest != 0) {
    SizeExpression sum;
    sum.kind = SizeExpression::Kind::Add;
    sum.parts = {std::move(out), SizeExpression(rest)};
    out = std::move(sum);
  }
  return out;
}

std::optional<TensorMeta> meta_of(const DryRuns& runs, std::span<const at::Tensor> found) {
  for (const at::Tensor& tensor : found) {
    if (!tensor.defined() || tensor.layout() != c10::kStrided || tensor.scalar_type() != found[0].scalar_type() ||
        tensor.dim() != found[0].dim()) {
      return std::nullopt;
    }
  }
  const auto line = [&](auto&& of) {
    std::vector<std::int64_t> numbers;
    for (const at::Tensor& tensor : found) numbers.push_back(of(tensor));
    return affine(runs, numbers);
  };
  TensorMeta out;
  out.dtype = found[0].scalar_type();
  for (std::int64_t axis = 0; axis < found[0].dim(); ++axis) {
    const auto size = line([&](const at::Tensor& t) { return t.size(axis); });
    const auto stride = line([&](const at::Tensor& t) { return t.stride(axis); });
    if (!size || !stride) return std::nullopt;
    out.sizes.push_back(*size);
    out.strides.push_back(*stride);
  }
  out.storage_offset = line([&](const at::Tensor& t) { return t.storage_offset(); }).value_or(SizeExpression(0));
  return out;
}

}  // namespace stagecraft::intake
