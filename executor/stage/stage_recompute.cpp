#include <ATen/core/grad_mode.h>
#include <ATen/ops/full_like.h>
#include <torch/csrc/autograd/autograd.h>

#include <algorithm>
#include <set>
#include <utility>

#include "costmodel/index.h"
#include "executor/device/machine/program.h"
#include "executor/stage/stage_program.h"

// Recomputation in segments. The gradient of a value that several segments read is summed as in one backward over all
// of them: autograd runs the nodes of later layers first and adds their gradients one by one, so each segment's
// backward begins with the sum over the later segments.

namespace stagecraft::stage {

void StageProgram::recompute_every(int layers) {
  const std::size_t length = layers > 0 ? to_index(layers) : std::max<std::size_t>(layers_.size(), 1);
  segments_.clear();
  std::vector<int> filled_by(to_index(slots_), -1);  // segments; -1: from outside
  std::set<int> kept;
  for (std::size_t first = 0; first < layers_.size(); first += length) {
    Segment segment{first, std::min(first + length, layers_.size()), {}, {}};
    const int number = to_int(segments_.size());
    std::set<int> inputs;
    for (std::size_t l = segment.first; l < segment.last; ++l) {
      for (const int slot : layers_[l].arguments) {
        if (filled_by[to_index(slot)] == number) continue;
        inputs.insert(slot);
        if (filled_by[to_index(slot)] >= 0) kept.insert(slot);
      }
      for (const int slot : layers_[l].results) filled_by[to_index(slot)] = number;
    }
    segment.inputs.assign(inputs.begin(), inputs.end());
    segments_.push_back(std::move(segment));
  }
  kept_slots_.assign(kept.begin(), kept.end());
  std::set<int> wanted = kept;
  wanted.insert(sent_slots_.begin(), sent_slots_.end());
  if (loss_slot_ >= 0) wanted.insert(loss_slot_);
  for (const int slot : wanted) {
    if (filled_by[to_index(slot)] >= 0) segments_[to_index(filled_by[to_index(slot)])].outputs.push_back(slot);
  }
}

void StageProgram::backward_by_segments(Flight& flight, const std::vector<at::Tensor>& sent_gradients,
                                        SplitBackward* rest, double loss_gradient, std::vector<at::Tensor>& found) {
  Values given;
  begin(flight, given);
  for (std::size_t i = 0; i < kept_slots_.size(); ++i) given[to_index(kept_slots_[i])] = std::move(flight.kept[i]);
  Values gradients(to_index(slots_));
  for (std::size_t i = 0; i < sent_slots_.size(); ++i) { gradients[to_index(sent_slots_[i])] = sent_gradients[i]; }
  if (loss_slot_ >= 0 && flight.loss.defined())
    gradients[to_index(loss_slot_)] = at::full_like(flight.loss, loss_gradient);

  for (auto segment = segments_.rbegin(); segment != segments_.rend(); ++segment) {
    torch::autograd::variable_list roots;
    torch::autograd::variable_list root_gradients;
    torch::autograd::variable_list inputs;
    std::vector<int> input_slots;
    Values values(to_index(slots_));
    for (const int slot : segment->inputs) {
      const at::Tensor& value = given[to_index(slot)];
      if (!value.requires_grad()) {
        values[to_index(slot)] = value;
        continue;
      }
      inputs.push_back(inputs_.make(value));
      input_slots.push_back(slot);
      values[to_index(slot)] = inputs.back();
      if (!gradients[to_index(slot)].defined()) continue;
      // The sum over later segments comes first, and this one continues it.
      roots.push_back(inputs.back());
      root_gradients.push_back(std::exchange(gradients[to_index(slot)], at::Tensor()));
    }
    run(flight, segment->first, segment->last, values, Manner::Recomputing, nullptr);
    for (const int slot : segment->outputs) {
      at::Tensor gradient = std::exchange(gradients[to_index(slot)], at::Tensor());
      given[to_index(slot)].reset();
      if (!values[to_index(slot)].requires_grad() || !gradient.defined()) continue;
      roots.push_back(values[to_index(slot)]);
      root_gradients.push_back(std::move(gradient));
    }
    values.clear();
    if (roots.empty()) continue;
    if (rest) {
      auto [found_here, deferred] = SplitBackward::of_inputs(roots, root_gradients, inputs);
      rest->before(std::move(deferred));
      for (std::size_t i = 0; i < inputs.size(); ++i) gradients[to_index(input_slots[i])] = found_here[i];
    } else {
      try {
        torch::autograd::backward(roots, root_gradients);
      } catch (const c10::Error& e) { device::rethrow_at(backward_text(), e); }
      for (std::size_t i = 0; i < inputs.size(); ++i)
        gradients[to_index(input_slots[i])] = GraphInputs::take_gradient(inputs[i]);
    }
  }
  for (const int slot : received_slots_) found.push_back(gradients[to_index(slot)]);
}

}  // namespace stagecraft::stage
