#include "executor/run/binding/check.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/view_as_real.h>
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <map>

#include "costmodel/index.h"

namespace stagecraft::run {
namespace {

at::Tensor comparable(const at::Tensor& tensor) {
  if (tensor.is_complex()) return at::view_as_real(tensor.resolve_conj());
  return tensor.is_floating_point() ? tensor : tensor.to(at::kDouble);
}

double largest(const at::Tensor& tensor) {
  return tensor.numel() == 0 ? 0 : comparable(tensor).abs().max().item<double>();
}

/// The larger error; NaN counts as the largest.
bool is_worse(double error, double than) { return !std::isnan(than) && (std::isnan(error) || error > than); }

double larger(double a, double b) { return is_worse(a, b) ? a : b; }

}  // namespace

void compare_tensors(const std::vector<ComparedTensor>& tensors, Check& check) {
  const at::NoGradGuard no_graph;
  std::map<int, double> layer_scale;
  std::vector<double> scales;
  for (const ComparedTensor& tensor : tensors) {
    scales.push_back(tensor.expected.defined() ? largest(tensor.expected) : 0);
    double& scale = layer_scale[check.other_kernels ? 0 : tensor.layer];
    scale = std::max(scale, scales.back());
  }
  for (std::size_t i = 0; i < tensors.size(); ++i) {
    const auto& [what, layer, found, expected] = tensors[i];
    if (found.defined() != expected.defined()) {
      const std::int64_t values = (found.defined() ? found : expected).numel();
      check.values += values;
      check.different += values;
      check.largest_error = std::numeric_limits<double>::quiet_NaN();
      check.worst = what + (found.defined() ? ", which should not exist" : ", which is missing");
    }
    if (!found.defined() || !expected.defined()) continue;
    check.values += found.numel();
    if (found.numel() == 0) continue;
    // NaN is not equal to anything, so a diverging run counts as different.
    const std::int64_t different = found.numel() - found.eq(expected).sum().item<std::int64_t>();
    if (different == 0) continue;
    check.different += different;
    const double of_found = largest(found);
    const double most = std::max(of_found, scales[i]);
    if (!check.other_kernels && most <= kCancelled * layer_scale[layer] && of_found > 0 && scales[i] > 0) {
      check.cancelled += different;
      continue;
    }
    const double around = check.other_kernels ? layer_scale[0] : kNoise / check.tolerance * layer_scale[layer];
    const double scale = std::max({scales[i], around, 1e-30});
    const double error = largest(comparable(found).sub(comparable(expected))) / scale;
    if (!is_worse(error, check.largest_error)) continue;
    check.largest_error = error;
    check.worst = what;
  }
}

void compare_loss(double found, double expected, Check& check) {
  ++check.losses;
  if (found != expected) ++check.losses_different;
  check.largest_loss_error =
      larger(std::abs(found - expected) / std::max(std::abs(expected), 1e-30), check.largest_loss_error);
}

void add(Check& sum, const Check& part) {
  sum.values += part.values;
  sum.different += part.different;
  sum.cancelled += part.cancelled;
  sum.losses += part.losses;
  sum.losses_different += part.losses_different;
  if (is_worse(part.largest_error, sum.largest_error)) {
    sum.largest_error = part.largest_error;
    sum.worst = part.worst;
  }
  sum.largest_loss_error = larger(part.largest_loss_error, sum.largest_loss_error);
}

bool is_close(const Check& check) {
  return check.largest_error <= check.tolerance && check.largest_loss_error <= check.tolerance;
}

std::string check_text(const Check& check) {
  std::string out = fmt::format("compared with {}: {} {}values and {} losses, ", check.with, check.values,
                                check.with == Check{}.with ? "gradient " : "", check.losses);
  if (check.different == 0 && check.losses_different == 0) return out + "all bit-equal";
  out += fmt::format("{} values and {} losses differ", check.different, check.losses_different);
  if (check.different > check.cancelled) {
    out += fmt::format(", by at most {:.2g} of their tensor's scale: {}", check.largest_error, check.worst);
  }
  if (check.losses_different > 0) out += fmt::format(", losses by at most {:.2g}", check.largest_loss_error);
  out += is_close(check) ? " (within rounding)" : " (WRONG)";
  if (check.cancelled > 0) {
    out += fmt::format("; {} of these values are what rounding leaves of sums that are 0", check.cancelled);
  }
  if (!check.reasons.empty()) out += fmt::format("; the last bits may differ: {}", fmt::join(check.reasons, ", and "));
  return out;
}

std::vector<std::string> other_orders(const BoundModel& bound) {
  const Plan& plan = bound.plan.plan();
  const model::Model& model = bound.model;
  const std::vector<std::vector<int>>& layers = bound.layers;
  std::vector<std::string> out;
  for (std::size_t s = 0; s < plan.stages.size() && plan.microbatches > 1; ++s) {
    if (plan.stages[s].devices.size() < 2) continue;
    out.push_back(fmt::format("each replica of stage {} sums its own microbatches first", s));
    break;
  }
  std::vector<TiedHolders> tied = bound.plan.tied();
  std::erase_if(tied, [](const TiedHolders& holders) { return holders.stages.size() < 2; });
  if (plan.microbatches > 1 && !tied.empty()) {
    out.push_back(fmt::format("stages {} share parameter \"{}\"{} and sum their own microbatches first",
                              fmt::join(tied.front().stages, " and "), tied.front().parameter,
                              tied.size() > 1 ? fmt::format(" and {} more", tied.size() - 1) : ""));
  }
  std::vector<int> stage_of(model.layers.size());
  for (std::size_t s = 0; s < layers.size(); ++s) {
    for (const int layer : layers[s]) stage_of[to_index(layer)] = to_int(s);
  }
  std::map<std::pair<int, int>, std::vector<int>> readers;  // layer and output -> stages of its readers, in model order
  for (std::size_t l = 0; l < model.layers.size(); ++l) {
    for (const model::ValueRef& value : model.layers[l].inputs) {
      if (value.layer >= 0) readers[{value.layer, value.output}].push_back(stage_of[l]);
    }
  }
  for (const auto& [value, stages] : readers) {
    if (stages.size() < 3 || std::ranges::is_sorted(stages)) continue;
    out.push_back(fmt::format("the layers that read \"{}\" do not run in the order of the stages",
                              model.layers[to_index(value.first)].name));
    break;
  }
  return out;
}

}  // namespace stagecraft::run
