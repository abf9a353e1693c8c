#include "profiler/subject/backward_watcher.h"

#include <ATen/SequenceNumber.h>
#include <ATen/record_function.h>
#include <c10/util/ThreadLocalDebugInfo.h>
#include <torch/csrc/autograd/function.h>
#include <torch/csrc/autograd/function_hook.h>
#include <torch/csrc/autograd/variable.h>

#include <algorithm>
#include <limits>
#include <utility>

#include "costmodel/index.h"

namespace stagecraft::profiler {
namespace {

/// The one slot of LibTorch's thread-local information that nothing else in a training process uses. It travels with
/// the work to autograd's own threads, which a thread_local of ours does not.
constexpr auto kSlot = c10::DebugInfoKind::PRODUCER_INFO;
constexpr std::uint64_t kNoSequence = std::numeric_limits<std::uint64_t>::max();

/// The layer of the accumulation that this thread runs next: its pre-hook tells, right before its callback.
thread_local int hinted = -1;

/// Whether this thread has a range open for the node that it runs. Nodes do not nest on a thread but for a backward
/// inside a backward, which nothing here does.
thread_local bool open = false;

}  // namespace

struct BackwardWatcher::State : c10::DebugInfoBase {
  struct Interval {
    std::uint64_t low;
    std::uint64_t high;
    int layer;
  };
  struct Hook : torch::autograd::FunctionPreHook {
    explicit Hook(int l) : layer(l) {}
    torch::autograd::variable_list operator()(const torch::autograd::variable_list& gradients) override {
      hinted = layer;
      return gradients;
    }
    int layer;
  };

  void tell(int layer, Phase phase) {
    if (!ranges.empty()) device::push_range(ranges[to_index(layer)], 0);
    open = !ranges.empty();
    on_node(layer, phase);
  }

  void on_sequence(std::uint64_t sequence) {
    if (sequence == kNoSequence) {  // an accumulation
      const int layer = std::exchange(hinted, -1);
      if (layer < 0) {
        ++unmapped;
      } else {
        tell(layer, Phase::Accumulate);
      }
      return;
    }
    const auto it = std::ranges::upper_bound(intervals, sequence, {}, &Interval::high);
    if (it == intervals.end() || sequence < it->low) {
      ++unmapped;
    } else {
      tell(it->layer, Phase::Backward);
    }
  }

  std::function<void(int, Phase)> on_node;
  std::vector<device::RangeName> ranges;
  std::vector<Interval> intervals;
  std::vector<std::pair<std::shared_ptr<torch::autograd::Node>, const Hook*>> hooked;
  std::uint64_t low = 0;
  std::int64_t unmapped = 0;
  std::unique_ptr<c10::DebugInfoGuard> in_backward;
  std::uint64_t callback = 0;
};

BackwardWatcher::BackwardWatcher(const std::vector<stage::Parameter>& parameters,
                                 std::function<void(int, Phase)> on_node, std::vector<device::RangeName> ranges)
    : state_(std::make_shared<State>()) {
  state_->on_node = std::move(on_node);
  state_->ranges = std::move(ranges);
  for (const stage::Parameter& parameter : parameters) {
    auto accumulator = torch::autograd::impl::grad_accumulator(parameter.value);
    auto hook = std::make_unique<State::Hook>(parameter.layer);
    state_->hooked.emplace_back(accumulator, hook.get());
    accumulator->add_pre_hook(std::move(hook));
  }
  state_->callback =
      at::addThreadLocalCallback(at::RecordFunctionCallback(
                                     [](const at::RecordFunction& f) -> std::unique_ptr<at::ObserverContext> {
                                       if (auto* state = static_cast<State*>(c10::ThreadLocalDebugInfo::get(kSlot)))
                                         state->on_sequence(static_cast<std::uint64_t>(f.seqNr()));
                                       return nullptr;
                                     },
                                     [](const at::RecordFunction&, at::ObserverContext*) {
                                       if (std::exchange(open, false)) device::pop_range();
                                     })
                                     .scopes({at::RecordScope::BACKWARD_FUNCTION}));
}

BackwardWatcher::~BackwardWatcher() {
  state_->in_backward.reset();
  at::removeCallback(state_->callback);
  // The accumulators may outlive the watcher with the parameters: take the hooks off again.
  for (const auto& [accumulator, ours] : state_->hooked) {
    std::erase_if(accumulator->pre_hooks(), [hook = ours](const auto& other) { return other.get() == hook; });
  }
}

void BackwardWatcher::begin(int) { state_->low = at::sequence_number::peek(); }

void BackwardWatcher::end(int layer) {
  const std::uint64_t high = at::sequence_number::peek();
  if (high > state_->low) state_->intervals.push_back({state_->low, high, layer});
}

void BackwardWatcher::begin_backward() { state_->in_backward = std::make_unique<c10::DebugInfoGuard>(kSlot, state_); }
void BackwardWatcher::end_backward() { state_->in_backward.reset(); }

void BackwardWatcher::reset() {
  state_->intervals.clear();
  state_->unmapped = 0;
}

std::int64_t BackwardWatcher::unmapped() const { return state_->unmapped; }

}  // namespace stagecraft::profiler
