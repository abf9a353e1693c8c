#include "executor/stage/gradients/loss_scaler.h"

#include <ATen/ops/empty.h>

#include <limits>
#include <stdexcept>

#include "costmodel/text/number.h"
#include "executor/stage/gradients/finite.h"

namespace stagecraft::stage {
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
