#include "executor/stage/gradients/gradient_reduction.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/_foreach_norm.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/full.h>
#include <ATen/ops/stack.h>
#include <ATen/ops/zeros.h>
#include <torch/csrc/autograd/function.h>
#include <torch/csrc/autograd/function_hook.h>
#include <torch/csrc/autograd/variable.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <iterator>
#include <numeric>
#include <ranges>
#include <set>
#include <stdexcept>
#include <string>
#include <utility>

#include "costmodel/index.h"
#include "executor/channel/control_tags.h"
#include "executor/stage/stage_program.h"

namespace stagecraft::stage {
namespace {

/// Those of a stage over its replicas, of parameters.
std::vector<GradientSum> over_replicas(const std::vector<GradientSum>& sums) {
  std::vector<GradientSum> out;
  std::ranges::copy_if(sums, std::back_inserter(out),
                       [](const GradientSum& sum) { return !sum.tied && !sum.parameters.empty(); });
  return out;
}

}  // namespace

std::vector<GradientBucket> gradient_buckets(const std::vector<std::int64_t>& values,
                                             const std::vector<GradientSum>& sums) {
  std::vector<GradientBucket> out;
  int last = to_int(values.size());
  std::int64_t end = std::accumulate(values.begin(), values.end(), std::int64_t{0});
  for (const GradientSum& sum : over_replicas(sums)) {
    const int first = last - to_int(sum.parameters.size());
    const std::int64_t begin = std::accumulate(values.begin() + first, values.begin() + last, end, std::minus<>());
    out.push_back({first, last, begin, end});
    last = first;
    end = begin;
  }
  return out;
}

struct GradientReduction::State {
  State(channel::Channel& c, std::vector<at::Tensor> p) : channel(c), leaves(std::move(p)) {}

  channel::Channel& channel;
  std::vector<at::Tensor> leaves;
  std::vector<at::Tensor> views;
  at::Tensor flat;
  std::vector<GradientBucket> buckets;
  std::vector<channel::CollectiveCall> sums;  // by bucket: of its message, a part of flat
  std::vector<at::Tensor> counts;             // in messages: how many replicas have each gradient
  std::vector<std::size_t> bucket_of;         // by parameter
  std::vector<bool> written;                  // since the step began, by parameter: its view
  std::vector<bool> made;                     // by a backward of this replica
  std::vector<int> missing;                   // gradients, by bucket
  std::vector<std::unique_ptr<channel::CollectiveInProgress>> started;  // by bucket
  bool last = false;
  std::vector<std::shared_ptr<torch::autograd::Node>> accumulators;  // a tensor without other owners loses its hooks

  struct Hook : torch::autograd::FunctionPostHook {
    Hook(std::weak_ptr<State> s, std::size_t i) : state(std::move(s)), parameter(i) {}
    torch::autograd::variable_list operator()(const torch::autograd::variable_list& outputs,
                                              const torch::autograd::variable_list& inputs) override {
      if (const auto alive = state.lock()) alive->ready(parameter, inputs[0].defined());
      return outputs;
    }
    std::weak_ptr<State> state;
    std::size_t parameter;
  };

  /// Copies the first gradient of a step, which autograd has made in memory of its own.
  void take_first(std::size_t parameter) {
    const at::NoGradGuard no_graph;
    at::Tensor& gradient = leaves[parameter].mutable_grad();
    gradient.defined() ? views[parameter].copy_(gradient) : views[parameter].zero_();
    gradient = views[parameter];
    written[parameter] = true;
  }
  void start_next() {
    const at::NoGradGuard no_graph;
    const std::size_t bucket = started.size();
    for (std::size_t i = to_index(buckets[bucket].first); i < to_index(buckets[bucket].last); ++i) {
      if (!written[i]) take_first(i);
    }
    count_here(bucket);
    started.push_back(channel.start(sums[bucket]));
  }
  void count_here(std::size_t bucket) {
    const int first = buckets[bucket].first;
    const int end = buckets[bucket].last;
    const bool all = std::find(made.begin() + first, made.begin() + end, false) == made.begin() + end;
    counts[bucket].fill_(all ? 1 : 0);
    for (int i = first; !all && i < end; ++i) {
      if (made[to_index(i)]) counts[bucket][i - first].fill_(1);
    }
  }
  /// After the sums: drops the gradients that no replica has.
  void drop_missing(std::size_t bucket) {
    const int first = buckets[bucket].first;
    at::Tensor host;
    for (int i = first; i < buckets[bucket].last; ++i) {
      if (made[to_index(i)]) continue;
      if (!host.defined()) host = counts[bucket].cpu();
      if (host[i - first].item<float>() == 0) leaves[to_index(i)].mutable_grad() = at::Tensor();
    }
  }
  void ready(std::size_t parameter, bool gradient) {
    if (gradient) made[parameter] = true;
    if (gradient && !written[parameter]) take_first(parameter);
    if (!last) return;
    --missing[bucket_of[parameter]];
    while (started.size() < buckets.size() && missing[started.size()] == 0) start_next();
  }
};

GradientReduction::GradientReduction(channel::Channel& channel, std::vector<at::Tensor> parameters,
                                     const std::vector<GradientSum>& sums)
    : state_(std::make_shared<State>(channel, std::move(parameters))) {
  State& s = *state_;
  const std::vector<GradientSum> planned = over_replicas(sums);
  std::vector<std::int64_t> values;
  for (const at::Tensor& leaf : s.leaves) values.push_back(leaf.numel());
  s.buckets = gradient_buckets(values, sums);
  if (s.buckets.size() > channel::kMostBuckets) {
    throw std::invalid_argument("the gradients of a stage are in " + std::to_string(s.buckets.size()) +
                                " buckets, at most " + std::to_string(channel::kMostBuckets) +
                                " are possible; use larger buckets (gradient_bucket_bytes)");
  }
  const std::int64_t count = s.buckets.empty() ? 0 : s.buckets.front().end;
  const c10::Device device = s.leaves.empty() ? c10::Device(c10::kCPU) : s.leaves.front().device();
  s.flat = at::zeros({count + to_int(s.leaves.size())}, at::TensorOptions(at::kFloat).device(device));
  s.bucket_of.resize(s.leaves.size());
  for (std::size_t b = 0; b < s.buckets.size(); ++b) {
    const GradientBucket& bucket = s.buckets[b];
    s.sums.push_back({.kind = Collective::AllReduce,
                      .values = s.flat.narrow(0, bucket.begin + bucket.first, bucket.message()),
                      .members = planned[b].ranks,
                      .tag = channel::kBucketsTag + to_int(b)});
    s.counts.push_back(s.sums.back().values.narrow(0, bucket.end - bucket.begin, bucket.last - bucket.first));
    for (int i = bucket.first; i < bucket.last; ++i) s.bucket_of[to_index(i)] = b;
  }
  std::int64_t offset = 0;
  for (std::size_t i = 0; i < s.leaves.size(); ++i) {
    s.views.push_back(view_laid_out_like(s.flat, offset + s.buckets[s.bucket_of[i]].first, s.leaves[i]));
    offset += values[i];
    s.accumulators.push_back(torch::autograd::impl::grad_accumulator(s.leaves[i]));
    s.accumulators.back()->add_post_hook(std::make_unique<State::Hook>(state_, i));
  }
}

GradientReduction::~GradientReduction() = default;

void GradientReduction::begin_step() {
  State& s = *state_;
  s.last = false;
  s.started.clear();
  s.missing.clear();
  for (const GradientBucket& bucket : s.buckets) s.missing.push_back(bucket.last - bucket.first);
  // On a CPU, copying the first gradients takes half as long as setting all to zero and adding to them. On a GPU, where
  // that is fast, copies would have to wait for autograd's streams.
  const bool copies = s.flat.device().is_cpu();
  s.written.assign(s.leaves.size(), !copies);
  s.made.assign(s.leaves.size(), false);
  if (!copies) s.flat.zero_();
  for (std::size_t i = 0; i < s.leaves.size(); ++i) s.leaves[i].mutable_grad() = copies ? at::Tensor() : s.views[i];
}

void GradientReduction::last_backward() { state_->last = true; }

void GradientReduction::finish() {
  State& s = *state_;
  while (s.started.size() < s.buckets.size()) s.start_next();
  for (const auto& reducing : s.started) reducing->wait();
  for (std::size_t b = 0; b < s.buckets.size(); ++b) s.drop_missing(b);
}

std::size_t GradientReduction::started() const { return state_->started.size(); }

TiedGradients::TiedGradients(channel::Channel& channel, const std::vector<TiedHolders>& tied,
                             std::vector<StageProgram*> programs)
    : channel_(channel), programs_(std::move(programs)) {
  for (const TiedHolders& holders : tied) {
    Tie tie{holders.parameter, {}, holders.ranks, channel::kTiesTag + holders.tag};
    for (std::size_t p = 0; p < programs_.size(); ++p) {
      Copies copies;
      copies.program = p;
      const std::vector<Parameter>& leaves = programs_[p]->leaves();
      for (std::size_t i = 0; i < leaves.size(); ++i) {
        if (leaves[i].name == holders.parameter) copies.leaves.push_back(i);
      }
      if (!copies.leaves.empty()) tie.stages.push_back(std::move(copies));
    }
    ties_.push_back(std::move(tie));
  }
}

bool TiedGradients::is_tied(const std::string& name) const {
  return std::ranges::find(ties_, name, &Tie::name) != ties_.end();
}

at::Tensor& TiedGradients::value(const Copies& copies, std::size_t i) const {
  return programs_[copies.program]->leaves()[copies.leaves[i]].value;
}

void TiedGradients::add_copies(std::size_t program, int microbatch, bool last) {
  const at::NoGradGuard no_graph;
  for (Tie& tie : ties_) {
    for (Copies& copies : tie.stages) {
      const std::size_t count = copies.leaves.size();
      if (copies.program != program || count < 2) continue;
      std::vector<at::Tensor>& gradients = copies.begun[microbatch];
      gradients.resize(count);
      for (std::size_t i = 0; i < count; ++i) {
        at::Tensor& gradient = value(copies, i).mutable_grad();
        if (gradient.defined()) gradients[i] = gradients[i].defined() ? gradients[i].add(gradient) : gradient;
        gradient = at::Tensor();
      }
      if (!last) continue;
      at::Tensor uses;
      // The last holder first, as in a backward.
      for (const at::Tensor& gradient : std::views::reverse(gradients)) {
        if (gradient.defined()) uses = uses.defined() ? uses.add(gradient) : gradient;
      }
      if (uses.defined()) copies.sum = copies.sum.defined() ? copies.sum.add_(uses) : uses;
      copies.begun.erase(microbatch);
    }
  }
}

void TiedGradients::reduce() {
  const at::NoGradGuard no_graph;
  for (Tie& tie : ties_) {
    at::Tensor sum;
    for (Copies& copies : std::views::reverse(tie.stages)) {
      const at::Tensor stage_sum = copies.leaves.size() > 1 ? std::exchange(copies.sum, {}) : value(copies, 0).grad();
      if (stage_sum.defined()) sum = sum.defined() ? sum.add(stage_sum) : stage_sum.clone();
    }
    if (tie.ranks.size() > 1) sum = over_ranks(tie, sum);
    // Stages take separate gradients: the optimizer divides each of them in place.
    for (const Copies& copies : tie.stages) {
      at::Tensor& parameter = value(copies, 0);
      parameter.mutable_grad() = sum.defined() ? at::empty_like(parameter).copy_(sum) : at::Tensor();
    }
  }
}

at::Tensor TiedGradients::over_ranks(const Tie& tie, const at::Tensor& sum) const {
  const at::Tensor& parameter = value(tie.stages.front(), 0);
  at::Tensor message = at::empty({parameter.numel() + 1}, parameter.options().requires_grad(false));
  at::Tensor total = message.narrow(0, 0, parameter.numel()).view(parameter.sizes());
  sum.defined() ? total.copy_(sum) : total.zero_();
  const at::Tensor count = message[parameter.numel()].fill_(sum.defined() ? 1 : 0);
  channel_.start({.kind = Collective::AllReduce, .values = message, .members = tie.ranks, .tag = tie.tag})->wait();
  // Only a rank without a gradient waits for a GPU to learn whether another rank has one.
  return sum.defined() || count.item<float>() > 0 ? total : at::Tensor();
}

std::map<std::string, double> squared_norms(const std::vector<Parameter>& parameters) {
  const at::NoGradGuard no_graph;
  std::map<std::string, double> out;
  std::vector<std::string> names;
  std::vector<at::Tensor> gradients;
  for (const Parameter& parameter : parameters) {
    const at::Tensor& gradient = parameter.value.grad();
    if (!out.emplace(parameter.name, 0).second || !gradient.defined()) continue;
    names.push_back(parameter.name);
    gradients.push_back(gradient);
  }
  if (gradients.empty()) return out;
  // On a GPU, a few kernels and one copy to the host for all of them.
  const at::Tensor norms = at::stack(at::_foreach_norm(gradients, 2, at::kDouble)).cpu();
  for (std::size_t i = 0; i < names.size(); ++i) {
    const double norm = norms.const_data_ptr<double>()[i];
    out[names[i]] = norm * norm;
  }
  return out;
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
