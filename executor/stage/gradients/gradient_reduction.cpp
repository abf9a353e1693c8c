#include "executor/stage/gradients/gradient_reduction.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/_foreach_copy.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/zeros.h>
#include <ATen/ops/zeros_like.h>
#include <torch/csrc/autograd/function.h>
#include <torch/csrc/autograd/function_hook.h>
#include <torch/csrc/autograd/variable.h>

#include <algorithm>
#include <functional>
#include <iterator>
#include <numeric>
#include <ranges>
#include <stdexcept>
#include <string>
#include <utility>

#include "costmodel/index.h"
#include "executor/channel/collective.h"
#include "executor/channel/control_tags.h"
#include "executor/stage/gradients/part_gather.h"
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

at::TensorOptions gradient_options(const at::Tensor& parameter) {
  return parameter.options().requires_grad(false).dtype(gradient_type(parameter));
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
  std::vector<at::Tensor> counts;             // by bucket: how many replicas have each gradient
  // If the sums have parts:
  DividedState divided;
  std::optional<channel::CollectiveCall> sum_of_counts;
  std::vector<at::Tensor> own_parts;                                    // by parameter, of flat
  std::vector<at::Tensor> updated_gradients;                            // by parameter: own_parts, or copies of them
  at::Tensor arriving;                                                  // with StateSharding::Parameters
  std::vector<PartGather> parameter_gathers;                            // by bucket: of the parameters
  std::vector<std::size_t> bucket_of;                                   // by parameter
  std::vector<bool> written;                                            // since the step began, by parameter: its view
  std::vector<bool> made;                                               // by a backward of this replica
  std::vector<int> missing;                                             // gradients, by bucket
  std::vector<std::unique_ptr<channel::CollectiveInProgress>> started;  // by bucket, then the sum of the counts
  bool last = false;
  std::vector<bool> summed;                                          // by parameter, after finish: it has a gradient
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
    if (sum_of_counts && started.size() == buckets.size()) started.push_back(channel.start(*sum_of_counts));
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
  /// Whether the gradients have memory from the first backward of a step until they are summed only.
  [[nodiscard]] bool keeps_parts() const { return sum_of_counts && divided.sharding >= StateSharding::Gradients; }
  [[nodiscard]] bool gathers() const { return sum_of_counts && divided.sharding == StateSharding::Parameters; }
  /// On a CPU, copying the first gradients takes half as long as setting all to zero and adding to them. On a GPU,
  /// where that is fast, copies would have to wait for autograd's streams.
  [[nodiscard]] bool copies() const { return flat.device().is_cpu(); }
  /// Where a gradient in `bucket` that begins after `values` of all gradients lies in flat. Without parts, each
  /// bucket's counts follow its gradients.
  [[nodiscard]] std::int64_t place(std::int64_t values, const GradientBucket& bucket) const {
    return values + (sum_of_counts ? 0 : bucket.first);
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
                                     const std::vector<GradientSum>& sums, DividedState divided,
                                     channel::StageTags tags)
    : state_(std::make_shared<State>(channel, std::move(parameters))) {
  State& s = *state_;
  s.divided = std::move(divided);
  const std::vector<at::Tensor>& updated = s.divided.updated;
  const std::vector<GradientSum> planned = over_replicas(sums);
  std::vector<std::int64_t> values;
  for (const at::Tensor& leaf : s.leaves) values.push_back(leaf.numel());
  s.buckets = gradient_buckets(values, sums);
  const int most = channel::kMostBuckets / tags.stages - 1;
  if (to_int(s.buckets.size()) > most) {
    throw std::invalid_argument("the gradients of a stage are in " + std::to_string(s.buckets.size()) +
                                " buckets, at most " + std::to_string(most) +
                                " are possible; use larger buckets (gradient_bucket_bytes)");
  }
  const std::int64_t count = s.buckets.empty() ? 0 : s.buckets.front().end;
  const c10::Device device = s.leaves.empty() ? c10::Device(c10::kCPU) : s.leaves.front().device();
  const at::ScalarType type = s.leaves.empty() ? at::kFloat : gradient_type(s.leaves.front());
  const at::TensorOptions options = at::TensorOptions(type).device(device);
  const std::int64_t counts = to_int(s.leaves.size());
  s.flat = at::zeros({count + (updated.empty() ? counts : 0)}, options);
  s.bucket_of.resize(s.leaves.size());
  if (!updated.empty()) {
    s.sum_of_counts = {.values = at::zeros({counts}, options),
                       .members = planned.front().ranks,
                       .tag = tags.bucket(to_int(s.buckets.size()))};
  }
  if (s.gathers()) {
    s.arriving = at::empty({count}, options.dtype(s.leaves.front().scalar_type()));
    for (const at::Tensor& leaf : s.leaves) restore_memory(leaf);  // to make views of it
  }
  std::vector<ValueRange> owned(s.leaves.size());
  for (std::size_t b = 0; b < s.buckets.size(); ++b) {
    const GradientBucket& bucket = s.buckets[b];
    const std::int64_t begin = s.place(bucket.begin, bucket);
    const std::int64_t gradients = bucket.end - bucket.begin;
    const std::vector<std::int64_t> parts = part_values(planned[b]);
    s.sums.push_back({.kind = parts.empty() ? Collective::AllReduce : Collective::ReduceScatter,
                      .values = s.flat.narrow(0, begin, parts.empty() ? bucket.message() : gradients),
                      .members = planned[b].ranks,
                      .tag = tags.bucket(to_int(b)),
                      .counts = parts});
    s.counts.push_back(parts.empty() ? s.flat.narrow(0, begin + gradients, bucket.last - bucket.first)
                                     : s.sum_of_counts->values.narrow(0, bucket.first, bucket.last - bucket.first));
    for (int i = bucket.first; i < bucket.last; ++i) s.bucket_of[to_index(i)] = b;
    if (parts.empty()) continue;
    channel::CollectiveCall all = s.sums.back();
    all.kind = Collective::AllGather;
    // Of parameters, whose values are not larger than gradients'.
    all.values = s.gathers() ? s.arriving.narrow(0, begin, gradients)
                             : all.values.view(s.leaves.front().scalar_type()).narrow(0, 0, gradients);
    const auto of_bucket = [&](const std::vector<at::Tensor>& tensors) {
      return std::vector(tensors.begin() + bucket.first, tensors.begin() + bucket.last);
    };
    s.parameter_gathers.emplace_back(std::move(all), channel.rank(), of_bucket(s.leaves),
                                     s.gathers() ? of_bucket(updated) : std::vector<at::Tensor>());
    const std::vector<std::int64_t> of_parameters(values.begin() + bucket.first, values.begin() + bucket.last);
    const std::vector<ValueRange> own =
        owned_ranges(of_parameters, parts, channel::place_of(channel.rank(), s.sums.back()));
    std::copy(own.begin(), own.end(), owned.begin() + bucket.first);
  }
  std::int64_t offset = 0;
  for (std::size_t i = 0; i < s.leaves.size(); ++i) {
    const std::int64_t begin = s.place(offset, s.buckets[s.bucket_of[i]]);
    s.views.push_back(view_laid_out_like(s.flat, begin, s.leaves[i]));
    if (s.sum_of_counts) s.own_parts.push_back(s.flat.narrow(0, begin + owned[i].first, owned[i].count));
    offset += values[i];
    s.accumulators.push_back(torch::autograd::impl::grad_accumulator(s.leaves[i]));
    s.accumulators.back()->add_post_hook(std::make_unique<State::Hook>(state_, i));
  }
  s.updated_gradients = s.own_parts;
  if (!s.keeps_parts()) return;
  for (at::Tensor& gradient : s.updated_gradients) gradient = at::zeros_like(gradient);
  release_memory(s.flat);
  if (!s.gathers()) return;
  release_memory(s.arriving);
  free_parameters();
}

GradientReduction::~GradientReduction() = default;

void GradientReduction::begin_step() {
  State& s = *state_;
  s.last = false;
  s.started.clear();
  s.missing.clear();
  for (const GradientBucket& bucket : s.buckets) s.missing.push_back(bucket.last - bucket.first);
  const bool copies = s.copies();
  s.written.assign(s.leaves.size(), !copies);
  s.made.assign(s.leaves.size(), false);
  if (s.keeps_parts()) {
    if (has_memory(s.flat)) release_memory(s.flat);
  } else if (!copies) {
    s.flat.zero_();
  }
  const bool views = !copies && !s.keeps_parts();
  for (std::size_t i = 0; i < s.leaves.size(); ++i) s.leaves[i].mutable_grad() = views ? s.views[i] : at::Tensor();
}

void GradientReduction::begin_backward() {
  State& s = *state_;
  if (!s.keeps_parts() || has_memory(s.flat)) return;
  restore_memory(s.flat);
  if (s.copies()) return;
  s.flat.zero_();
  for (std::size_t i = 0; i < s.leaves.size(); ++i) s.leaves[i].mutable_grad() = s.views[i];
}

void GradientReduction::last_backward() { state_->last = true; }

void GradientReduction::finish() {
  State& s = *state_;
  begin_backward();  // a replica may have none
  while (s.started.size() < s.buckets.size()) s.start_next();
  for (const auto& reducing : s.started) reducing->wait();
  for (std::size_t b = 0; b < s.buckets.size(); ++b) s.drop_missing(b);
  if (!s.sum_of_counts) return;
  s.summed.clear();
  for (const at::Tensor& leaf : s.leaves) s.summed.push_back(leaf.grad().defined());
  for (std::size_t i = 0; i < s.leaves.size(); ++i) {
    const at::Tensor& updated = s.divided.updated[i];
    if (updated.numel() > 0) updated.mutable_grad() = s.summed[i] ? s.updated_gradients[i] : at::Tensor();
  }
  if (!s.keeps_parts()) return;
  const at::NoGradGuard no_graph;
  at::_foreach_copy_(s.updated_gradients, s.own_parts);
  for (at::Tensor& leaf : s.leaves) leaf.mutable_grad() = at::Tensor();
  release_memory(s.flat);
}

void GradientReduction::gather_gradients() {
  State& s = *state_;
  if (!s.sum_of_counts) return;
  const at::NoGradGuard no_graph;
  if (s.keeps_parts()) {
    restore_memory(s.flat);
    at::_foreach_copy_(s.own_parts, s.updated_gradients);
  }
  std::vector<std::unique_ptr<channel::CollectiveInProgress>> gathering;
  for (channel::CollectiveCall all : s.sums) {
    all.kind = Collective::AllGather;
    gathering.push_back(s.channel.start(all));
  }
  for (const auto& gather : gathering) gather->wait();
  for (std::size_t i = 0; i < s.leaves.size() && s.keeps_parts(); ++i)
    s.leaves[i].mutable_grad() = s.summed[i] ? s.views[i] : at::Tensor();
}

void GradientReduction::gather_parameters() {
  State& s = *state_;
  if (s.gathers() || !s.sum_of_counts) return;
  if (s.keeps_parts()) restore_memory(s.flat);
  for (PartGather& gather : s.parameter_gathers) gather.start(s.channel);
  for (PartGather& gather : s.parameter_gathers) gather.finish();
  if (s.keeps_parts()) release_memory(s.flat);
}

void GradientReduction::begin_gather() {
  State& s = *state_;
  if (!s.gathers()) return;
  for (const at::Tensor& leaf : s.leaves) restore_memory(leaf);
  restore_memory(s.arriving);
  for (PartGather& gather : s.parameter_gathers) gather.start(s.channel);
}

void GradientReduction::finish_gather() {
  State& s = *state_;
  if (!s.gathers()) return;
  for (PartGather& gather : s.parameter_gathers) gather.finish();
  release_memory(s.arriving);
}

void GradientReduction::free_parameters() {
  if (!state_->gathers()) return;
  for (const at::Tensor& leaf : state_->leaves) release_memory(leaf);
}

std::size_t GradientReduction::started() const { return state_->started.size(); }

TiedGradients::TiedGradients(channel::Channel& channel, const std::vector<TiedHolders>& tied,
                             std::vector<StageProgram*> programs, const GradientSums& sums,
                             std::vector<std::vector<at::Tensor>> updated)
    : channel_(channel), programs_(std::move(programs)), updated_(std::move(updated)) {
  for (const TiedHolders& holders : tied) {
    Tie tie{holders.parameter, {}, holders.ranks, channel::kTiesTag + holders.tag, {}, false};
    for (const GradientSum& sum : std::views::join(sums)) {
      if (sum.tied == holders.tag) tie.parts = part_values(sum);
    }
    for (std::size_t p = 0; p < programs_.size(); ++p) {
      Copies copies;
      copies.program = p;
      const std::vector<Parameter>& leaves = programs_[p]->leaves();
      for (std::size_t i = 0; i < leaves.size(); ++i) {
        if (leaves[i].name == holders.parameter) copies.leaves.push_back(i);
      }
      if (copies.leaves.empty()) continue;
      copies.parameter = to_index(std::ranges::find(programs_[p]->parameters(), tie.name, &Parameter::name) -
                                  programs_[p]->parameters().begin());
      tie.stages.push_back(std::move(copies));
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
    if (!tie.parts.empty()) {
      reduce_part(tie, sum);
      continue;
    }
    if (tie.ranks.size() > 1) sum = over_ranks(tie, sum);
    // Stages take separate gradients: the optimizer divides each of them in place.
    for (const Copies& copies : tie.stages) {
      at::Tensor& parameter = value(copies, 0);
      parameter.mutable_grad() =
          sum.defined() ? at::empty_like(parameter, gradient_options(parameter)).copy_(sum) : at::Tensor();
    }
  }
}

at::Tensor TiedGradients::over_ranks(const Tie& tie, const at::Tensor& sum) const {
  const at::Tensor& parameter = value(tie.stages.front(), 0);
  at::Tensor message = at::empty({parameter.numel() + 1}, gradient_options(parameter));
  at::Tensor total = message.narrow(0, 0, parameter.numel()).view(parameter.sizes());
  sum.defined() ? total.copy_(sum) : total.zero_();
  const at::Tensor count = message[parameter.numel()].fill_(sum.defined() ? 1 : 0);
  channel_.start({.kind = Collective::AllReduce, .values = message, .members = tie.ranks, .tag = tie.tag})->wait();
  // Only a rank without a gradient waits for a GPU to learn whether another rank has one.
  return sum.defined() || count.item<float>() > 0 ? total : at::Tensor();
}

void TiedGradients::reduce_part(Tie& tie, const at::Tensor& sum) {
  const at::Tensor& parameter = value(tie.stages.front(), 0);
  channel::CollectiveCall call{
      .kind = Collective::ReduceScatter,
      .values = at::empty({parameter.numel() + to_int(tie.ranks.size())}, gradient_options(parameter)),
      .members = tie.ranks,
      .tag = tie.tag};
  // Each part is followed by the number of ranks that have a gradient.
  for (const std::int64_t values : tie.parts) call.counts.push_back(values + 1);
  const std::vector<at::Tensor> messages = call.values.split_with_sizes(call.counts);
  const at::Tensor flat = sum.defined() ? in_memory_order(laid_out_like(sum, parameter)) : at::Tensor();
  std::int64_t offset = 0;
  for (std::size_t i = 0; i < messages.size(); ++i) {
    const at::Tensor part = messages[i].narrow(0, 0, tie.parts[i]);
    sum.defined() ? part.copy_(flat.narrow(0, offset, tie.parts[i])) : part.zero_();
    messages[i][tie.parts[i]].fill_(sum.defined() ? 1 : 0);
    offset += tie.parts[i];
  }
  channel_.start(call)->wait();
  const std::size_t mine = channel::place_of(channel_.rank(), call);
  const std::int64_t values = tie.parts[mine];
  tie.has_gradient = sum.defined() || messages[mine][values].item<float>() > 0;
  for (const Copies& copies : tie.stages) {
    value(copies, 0).mutable_grad() = at::Tensor();
    part(copies).mutable_grad() =
        tie.has_gradient && values > 0 ? messages[mine].narrow(0, 0, values).clone() : at::Tensor();
  }
}

PartGather TiedGradients::gather_of(const Tie& tie, const at::Tensor& tensor) const {
  return PartGather({.kind = Collective::AllGather,
                     .values = at::empty({tensor.numel()}, tensor.options().requires_grad(false)),
                     .members = tie.ranks,
                     .tag = tie.tag,
                     .counts = tie.parts},
                    channel_.rank(), {tensor});
}

void TiedGradients::gather_gradients() {
  const at::NoGradGuard no_graph;
  for (Tie& tie : ties_) {
    if (tie.parts.empty() || !tie.has_gradient) continue;
    const at::Tensor& parameter = value(tie.stages.front(), 0);
    const at::Tensor whole = at::empty_like(parameter, gradient_options(parameter));
    const at::Tensor& own = part(tie.stages.front());
    if (own.grad().defined()) {
      const auto mine = tie.parts.begin() + (std::ranges::find(tie.ranks, channel_.rank()) - tie.ranks.begin());
      const std::int64_t first = std::accumulate(tie.parts.begin(), mine, std::int64_t{0});
      in_memory_order(whole).narrow(0, first, own.numel()).copy_(own.grad());
    }
    PartGather gather = gather_of(tie, whole);
    gather.start(channel_);
    gather.finish();
    for (const Copies& copies : tie.stages) value(copies, 0).mutable_grad() = whole;
  }
}

void TiedGradients::gather_parameters() {
  const at::NoGradGuard no_graph;
  std::vector<std::pair<const Tie*, PartGather>> gathers;
  for (const Tie& tie : ties_) {
    if (tie.parts.empty()) continue;
    gathers.emplace_back(&tie, gather_of(tie, value(tie.stages.front(), 0)));
    gathers.back().second.start(channel_);
  }
  for (auto& [tie, gather] : gathers) {
    gather.finish();
    const at::Tensor& first = value(tie->stages.front(), 0);
    for (const Copies& copies : tie->stages) {
      if (&copies != &tie->stages.front()) value(copies, 0).copy_(first);
    }
  }
}

}  // namespace stagecraft::stage
