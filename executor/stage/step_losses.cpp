#include "executor/stage/step_losses.h"

#include <ATen/DeviceAccelerator.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/stack.h>

namespace stagecraft::stage {

void StepLosses::add(std::int64_t step, int microbatch, const at::Tensor& loss) {
  Step& entry = of(step);
  if (device_.is_cpu()) {
    entry.losses[microbatch] = loss.item<double>();
    return;
  }
  entry.microbatches.push_back(microbatch);
  entry.on_device.push_back(loss.detach());
}

void StepLosses::end_step(std::int64_t step) {
  Step& entry = of(step);
  if (entry.microbatches.empty()) return;
  const at::Tensor all = at::stack(entry.on_device).to(at::kDouble);
  entry.on_device.clear();
  entry.host = at::empty(all.sizes(), at::TensorOptions(at::kDouble).pinned_memory(true));
  entry.host.copy_(all, /*non_blocking=*/true);
  entry.arrived = std::make_unique<c10::Event>(device_.type());
  entry.arrived->record(at::accelerator::getCurrentStream(device_.index()));
}

MicrobatchLosses StepLosses::take(std::int64_t step) {
  auto node = steps_.extract(step);
  if (node.empty()) return MicrobatchLosses(&memory_);
  Step& entry = node.mapped();
  if (entry.arrived) {
    entry.arrived->synchronize();
    for (std::size_t i = 0; i < entry.microbatches.size(); ++i)
      entry.losses[entry.microbatches[i]] = entry.host.const_data_ptr<double>()[i];
  }
  return std::move(entry.losses);
}

}  // namespace stagecraft::stage
