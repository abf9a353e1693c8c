#include "executor/stage/gradients/norms.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/full.h>
#include <ATen/ops/linalg_vector_norm.h>
#include <ATen/ops/zeros.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <numeric>
#include <ranges>
#include <set>

#include "costmodel/index.h"
#include "executor/channel/control_tags.h"

namespace stagecraft::stage {
namespace {

std::int64_t blocks_of(std::int64_t values) { return (values + kOwnedBlock - 1) / kOwnedBlock; }

/// In a fixed order, and at memory speed: sixteen sums, added at the end.
template <class Value>
double sum_of_squares(const Value* values, std::int64_t count) {
  constexpr std::int64_t kSums = 16;
  std::array<double, kSums> sums{};
  std::int64_t i = 0;
  for (; i + kSums <= count; i += kSums) {
    for (std::int64_t k = 0; k < kSums; ++k) {
      const double value = static_cast<float>(values[i + k]);
      sums[to_index(k)] += value * value;
    }
  }
  for (std::int64_t k = 0; i < count; ++i, ++k) {
    const double value = static_cast<float>(values[i]);
    sums[to_index(k)] += value * value;
  }
  return std::accumulate(sums.begin(), sums.end(), 0.0);
}

/// Adds the norms of the blocks of `values`, a vector on a GPU, to `out`. The shapes of the reductions, and with them
/// the order of the sums, do not depend on the number of blocks.
void add_block_norms(const at::Tensor& values, std::vector<at::Tensor>& out) {
  constexpr std::int64_t kRow = 32;
  const std::int64_t whole = values.numel() / kOwnedBlock;
  const std::int64_t rest = values.numel() % kOwnedBlock;
  if (whole > 0) {
    const at::Tensor rows = values.narrow(0, 0, whole * kOwnedBlock).view({whole * kRow, kOwnedBlock / kRow});
    const at::Tensor norms = at::linalg_vector_norm(rows, 2, at::IntArrayRef{1}, false, at::kDouble);
    out.push_back(at::linalg_vector_norm(norms.view({whole, kRow}), 2, at::IntArrayRef{1}));
  }
  if (rest > 0) {
    const at::Tensor last = values.narrow(0, whole * kOwnedBlock, rest);
    out.push_back(at::linalg_vector_norm(last, 2, at::OptionalIntArrayRef{}, false, at::kDouble).view({1}));
  }
}

}  // namespace

SquaredBlocks squared_blocks(const std::vector<Parameter>& parameters) {
  const at::NoGradGuard no_graph;
  SquaredBlocks out;
  std::vector<std::vector<double>*> waiting;  // for norms on a GPU
  std::vector<at::Tensor> norms;
  for (const Parameter& parameter : parameters) {
    const auto [it, fresh] = out.emplace(parameter.name, to_index(blocks_of(parameter.value.numel())));
    const at::Tensor& found = parameter.value.grad();
    if (!fresh || !found.defined() || found.numel() == 0) continue;
    const at::Tensor gradient = in_memory_order(laid_out_like(found, parameter.value));
    std::vector<double>& blocks = it->second;
    if (gradient.is_cpu()) {
      const auto sum_blocks = [&](const auto* values) {
        for (std::size_t b = 0; b < blocks.size(); ++b) {
          const std::int64_t begin = to_int(b) * kOwnedBlock;
          blocks[b] = sum_of_squares(values + begin, std::min(kOwnedBlock, gradient.numel() - begin));
        }
      };
      gradient.scalar_type() == at::kBFloat16 ? sum_blocks(gradient.const_data_ptr<at::BFloat16>())
                                              : sum_blocks(gradient.const_data_ptr<float>());
    } else {
      add_block_norms(gradient, norms);
      waiting.push_back(&blocks);
    }
  }
  if (norms.empty()) return out;
  // One copy to the host for all of them.
  const at::Tensor all = at::cat(norms).cpu();
  const auto* next = all.const_data_ptr<double>();
  for (std::vector<double>* const blocks : waiting) {
    for (double& block : *blocks) {
      block = *next * *next;
      ++next;
    }
  }
  return out;
}

void gather_squared_blocks(channel::Channel& channel, const std::vector<const GradientSum*>& sums,
                           const std::vector<HeldParameter>& parameters, SquaredBlocks& blocks) {
  if (sums.empty()) return;
  struct OwnedBlocks {
    std::string name;
    std::int64_t count = 0;
  };
  const std::vector<int>& ranks = sums.front()->ranks;
  std::vector<std::vector<OwnedBlocks>> owned(ranks.size());
  for (const GradientSum* const sum : sums) {
    const std::vector<std::int64_t> parts = part_values(*sum);
    const std::vector<std::int64_t> values = parameter_values(*sum, parameters);
    for (std::size_t member = 0; member < ranks.size(); ++member) {
      const std::vector<ValueRange> ranges = owned_ranges(values, parts, member);
      for (std::size_t i = 0; i < ranges.size(); ++i)
        owned[member].push_back({std::string(parameters[sum->parameters[i]].name), blocks_of(ranges[i].count)});
    }
  }
  channel::CollectiveCall call{.kind = Collective::AllGather, .members = ranks, .tag = channel::kBlocksTag};
  for (const std::vector<OwnedBlocks>& of_member : owned) {
    const auto add = [](std::int64_t sum, const OwnedBlocks& of_parameter) { return sum + of_parameter.count; };
    call.counts.push_back(std::accumulate(of_member.begin(), of_member.end(), std::int64_t{0}, add));
  }
  const std::size_t mine = to_index(std::ranges::find(ranks, channel.rank()) - ranks.begin());
  const std::int64_t before = std::accumulate(call.counts.begin(), call.counts.begin() + to_int(mine), std::int64_t{0});
  const std::int64_t all = std::accumulate(call.counts.begin(), call.counts.end(), std::int64_t{0});
  call.values = at::zeros({all}, at::TensorOptions(at::kDouble));
  double* const gathered = call.values.data_ptr<double>();
  double* next = gathered + before;
  for (const auto& [name, count] : owned[mine]) next = std::copy_n(blocks.at(name).begin(), count, next);
  channel.start(call)->wait();
  for (const auto& [name, count] : owned[mine]) blocks.at(name).clear();
  next = gathered;
  for (const auto& [name, count] : std::views::join(owned)) {
    std::vector<double>& whole = blocks.at(name);
    whole.insert(whole.end(), next, next + count);
    next += count;
  }
}

std::map<std::string, double> squared_norms(const SquaredBlocks& blocks) {
  std::map<std::string, double> out;
  for (const auto& [name, squares] : blocks) out[name] = std::accumulate(squares.begin(), squares.end(), 0.0);
  return out;
}

std::map<std::string, double> squared_norms(const std::vector<Parameter>& parameters) {
  return squared_norms(squared_blocks(parameters));
}

std::map<std::string, double> gather_squared_norms(channel::Channel& channel,
                                                   const std::map<std::string, double>& norms,
                                                   const std::vector<std::string>& names) {
  constexpr double kAbsent = -1;
  const auto count = static_cast<std::int64_t>(names.size());
  at::Tensor rows = at::full({channel.ranks() * count}, kAbsent, at::TensorOptions().dtype(at::kDouble));
  double* const values = rows.data_ptr<double>();
  for (std::int64_t i = 0; i < count; ++i) {
    const auto it = norms.find(names[to_index(i)]);
    if (it != norms.end()) values[channel.rank() * count + i] = it->second;
  }
  channel
      .start({.kind = Collective::AllGather,
              .values = rows,
              .members = channel::all_ranks(channel),
              .tag = channel::kNormTag})
      ->wait();
  std::map<std::string, double> out;
  for (std::int64_t rank = 0; rank < channel.ranks(); ++rank) {
    for (std::int64_t i = 0; i < count; ++i) {
      // NaN is kept: a diverging run must show.
      const double value = rows.const_data_ptr<double>()[rank * count + i];
      if (value != kAbsent) out.emplace(names[to_index(i)], value);
    }
  }
  return out;
}

double gradient_norm(const std::map<std::string, double>& squared, double divisor) {
  double sum = 0;
  for (const auto& [name, square] : squared) sum += square;
  return std::sqrt(sum) / divisor;
}

double clip_divisor(const std::map<std::string, double>& squared, double divisor, double limit) {
  return std::max(1.0, gradient_norm(squared, divisor) / limit);
}

std::vector<std::string> trainable_names(const model::Model& model) {
  std::set<std::string> out;
  for (const model::LayerSpec& layer : model.layers) {
    for (const model::ParameterSpec& parameter : layer.parameters) {
      if (parameter.trainable) out.insert(parameter.name);
    }
  }
  return {out.begin(), out.end()};
}

}  // namespace stagecraft::stage
