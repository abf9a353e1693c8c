#include "executor/stage/gradients/finite.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/_amp_foreach_non_finite_check_and_unscale.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/isfinite.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/zeros.h>

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <iterator>
#include <limits>
#include <stdexcept>

#include "costmodel/errors.h"
#include "costmodel/text/number.h"

namespace stagecraft::stage {
namespace {

/// On the bits of a type with this exponent and without branches, at memory speed: every gradient of every step is
/// checked.
template <class Bits>
bool all_finite(const void* values, std::int64_t count, Bits exponent) {
  const char* next = static_cast<const char*>(values);
  Bits found = 0;
  for (std::int64_t i = 0; i < count; ++i, next += sizeof(Bits)) {
    Bits bits;
    std::memcpy(&bits, next, sizeof bits);
    found = static_cast<Bits>(found | static_cast<Bits>((bits & exponent) == exponent));
  }
  return found == 0;
}

}  // namespace

const std::vector<std::string>& on_nonfinite_names() {
  static const std::vector<std::string> names{"stop", "warn", "skip"};
  return names;
}

OnNonfinite parse_on_nonfinite(const std::string& name) {
  const auto it = std::ranges::find(on_nonfinite_names(), name);
  if (it == on_nonfinite_names().end())
    throw InputError(ErrorKind::UnknownName, unknown_name("action", name, on_nonfinite_names()));
  return static_cast<OnNonfinite>(std::distance(on_nonfinite_names().begin(), it));
}

bool all_finite(const at::Tensor& tensor) {
  if (!tensor.is_floating_point() && !tensor.is_complex()) return true;
  if (tensor.is_cpu() && tensor.is_non_overlapping_and_dense()) {
    const void* const values = tensor.const_data_ptr();
    if (tensor.scalar_type() == at::kFloat) return all_finite<std::uint32_t>(values, tensor.numel(), 0x7f800000);
    if (tensor.scalar_type() == at::kBFloat16) return all_finite<std::uint16_t>(values, tensor.numel(), 0x7f80);
  }
  const at::NoGradGuard no_graph;
  return at::isfinite(tensor).all().item<bool>();
}

at::Tensor nonfinite_flag(const std::vector<Parameter>& parameters) {
  const at::NoGradGuard no_graph;
  std::vector<at::Tensor> gradients;
  for (const Parameter& parameter : parameters) {
    if (parameter.value.grad().defined()) gradients.push_back(parameter.value.grad());
  }
  if (gradients.empty()) return {};
  const at::TensorOptions options = gradients.front().options().dtype(at::kFloat);
  at::Tensor found = at::zeros({1}, options);
  // Times 1, which does not change values.
  at::_amp_foreach_non_finite_check_and_unscale_(gradients, found, at::ones({1}, options));
  return found.squeeze();
}

std::optional<std::string> nonfinite_gradient(const std::vector<Parameter>& parameters) {
  for (const Parameter& parameter : parameters) {
    const at::Tensor& gradient = parameter.value.grad();
    if (gradient.defined() && !all_finite(gradient)) return parameter.name;
  }
  return std::nullopt;
}

namespace {

constexpr double kGrowth = 2;
constexpr double kBackoff = 0.5;

}  // namespace

std::optional<double> parse_loss_scale(const std::string& text) {
  if (text == "dynamic") return std::nullopt;
  const std::optional<double> scale = number_in<double>(text);
  if (!scale || *scale <= 0)
    throw std::invalid_argument("found \"" + text + "\", expected dynamic or a number above 0");
  return scale;
}

LossScaler::LossScaler(const LossScaleOptions& options) : options_(options) {
  if (options.growth_interval < 1) {
    throw std::invalid_argument("the loss scale grows every " + std::to_string(options.growth_interval) +
                                " steps, must be at least 1");
  }
  if (options.fixed && !(*options.fixed > 0))
    throw std::invalid_argument("the loss scale is " + std::to_string(*options.fixed) + ", must be above 0");
  state_.scale = options.fixed.value_or(options.first);
}

void LossScaler::set_state(const LossScale& state) {
  if (!options_.fixed) state_ = state;
}

void LossScaler::update(bool overflow) {
  if (overflow) ++skipped_;
  if (options_.fixed) return;
  if (overflow) {
    state_ = {state_.scale * kBackoff, 0};
  } else if (++state_.steps >= options_.growth_interval) {
    // The loss is float32, and so is its initial gradient.
    const double grown = state_.scale * kGrowth;
    state_ = {grown <= std::numeric_limits<float>::max() ? grown : state_.scale, 0};
  }
}

bool overflows(const std::vector<Parameter>& parameters) {
  const at::Tensor flag = nonfinite_flag(parameters);
  return flag.defined() && flag.item<float>() > 0;
}

bool on_any_rank(channel::Channel& channel, bool here, int tag) {
  at::Tensor sum = at::empty({1}, at::kFloat);
  *sum.data_ptr<float>() = here ? 1.0F : 0.0F;
  channel.start({.kind = Collective::AllReduce, .values = sum, .members = channel::all_ranks(channel), .tag = tag})
      ->wait();
  return *sum.const_data_ptr<float>() > 0;
}

}  // namespace stagecraft::stage
