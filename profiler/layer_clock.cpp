#include "profiler/layer_clock.h"

#include <ATen/SequenceNumber.h>
#include <ATen/record_function.h>
#include <torch/csrc/autograd/function.h>
#include <torch/csrc/autograd/function_hook.h>
#include <torch/csrc/autograd/variable.h>

#include <algorithm>
#include <chrono>
#include <limits>

namespace stagecraft {
namespace {

/// The record-function callback takes a plain function, so the clock that it reports to stands here.
thread_local LayerClock* active = nullptr;

}  // namespace

double steady_seconds() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

struct LayerClock::Hook : torch::autograd::FunctionPreHook {
  Hook(LayerClock* c, int l) : clock(c), layer(l) {}
  torch::autograd::variable_list operator()(const torch::autograd::variable_list& gradients) override {
    clock->hinted_ = layer;
    return gradients;
  }
  LayerClock* clock;
  int layer;
};

LayerClock::LayerClock(std::size_t layers, const std::vector<Parameter>& parameters, MemoryTracker* memory,
                       std::function<double()> now)
    : memory_(memory), now_(std::move(now)), forward_(layers), backward_(layers), growth_(layers), transient_(layers) {
  for (const Parameter& parameter : parameters) {
    auto accumulator = torch::autograd::impl::grad_accumulator(parameter.value);
    auto hook = std::make_unique<Hook>(this, parameter.layer);
    hooked_.emplace_back(accumulator, hook.get());
    accumulator->add_pre_hook(std::move(hook));
  }
  active = this;
  callback_ = at::addThreadLocalCallback(
      at::RecordFunctionCallback([](const at::RecordFunction& f) -> std::unique_ptr<at::ObserverContext> {
        if (active) active->on_node(static_cast<std::uint64_t>(f.seqNr()));
        return nullptr;
      }).scopes({at::RecordScope::BACKWARD_FUNCTION}));
}

LayerClock::~LayerClock() {
  at::removeCallback(callback_);
  active = nullptr;
  // The accumulators may outlive the clock with the parameters: take the hooks off again.
  for (const auto& [accumulator, own] : hooked_) {
    std::erase_if(static_cast<torch::autograd::Node*>(accumulator.get())->pre_hooks(),
                  [hook = own](const auto& each) { return each.get() == hook; });
  }
}

void LayerClock::reset() {
  for (auto* times : {&forward_, &backward_}) std::fill(times->begin(), times->end(), 0);
  for (auto* bytes : {&growth_, &transient_}) std::fill(bytes->begin(), bytes->end(), 0);
  intervals_.clear();
  unmapped_ = 0;
}

void LayerClock::begin(int layer) {
  current_ = layer;
  sequence_ = at::sequence_number::peek();
  if (memory_) {
    live_ = memory_->live().value;
    memory_->reset_peak();
  }
  since_ = now_();
}

void LayerClock::end(int layer) {
  forward_[static_cast<std::size_t>(layer)] += now_() - since_;
  if (memory_) {
    const std::int64_t live = memory_->live().value;
    growth_[static_cast<std::size_t>(layer)] += live - live_;
    auto& transient = transient_[static_cast<std::size_t>(layer)];
    transient = std::max(transient, memory_->peak().value - std::max(live, live_));
  }
  const std::uint64_t high = at::sequence_number::peek();
  if (high > sequence_) intervals_.push_back({sequence_, high, layer});
}

void LayerClock::begin_backward() {
  in_backward_ = true;
  current_ = hinted_ = -1;
  if (memory_) {
    live_ = memory_->live().value;
    memory_->reset_peak();
  }
  since_ = now_();
}

void LayerClock::switch_to(int layer) {
  const double time = now_();
  // What comes before the first node is that node's: the engine sets it up.
  const int owner = current_ < 0 ? layer : current_;
  if (owner >= 0) {
    backward_[static_cast<std::size_t>(owner)] += time - since_;
    if (memory_ && layer != current_) {
      auto& transient = transient_[static_cast<std::size_t>(owner)];
      transient = std::max(transient, memory_->peak().value - live_);
      live_ = memory_->live().value;
      memory_->reset_peak();
    }
  }
  since_ = time;
  current_ = layer;
}

void LayerClock::on_node(std::uint64_t sequence) {
  if (!in_backward_) return;
  if (sequence ==
      std::numeric_limits<std::uint64_t>::max()) {  // an accumulation; its pre-hook has just named the layer
    if (hinted_ < 0) ++unmapped_;
    switch_to(hinted_ >= 0 ? hinted_ : current_);
    hinted_ = -1;
    return;
  }
  const auto it = std::upper_bound(intervals_.begin(), intervals_.end(), sequence,
                                   [](std::uint64_t s, const Interval& i) { return s < i.high; });
  if (it == intervals_.end() || sequence < it->low) {
    ++unmapped_;
    return;
  }
  switch_to(it->layer);
}

void LayerClock::end_backward() {
  switch_to(-1);
  in_backward_ = false;
}

}  // namespace stagecraft
