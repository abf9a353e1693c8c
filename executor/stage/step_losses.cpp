#include "executor/stage/step_losses.h"

#include <ATen/DeviceAccelerator.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/stack.h>

namespace stagecraft::stage {

void StepLosses::add(std::int64_t step, int microbatch, const at::Tensor& loss) {
  Step& own = of(step);
  if (device_.is_cpu()) {
    own.losses[microbatch] = loss.item<double>();
    return;
  }
  own.microbatches.push_back(microbatch);
  own.on_device.push_back(loss.detach());
}

void StepLosses::end_step(std::int64_t step) {
  Step& own = of(step);
  if (own.microbatches.empty()) return;
  const at::Tensor all = at::stack(own.on_device).to(at::kDouble);
  own.on_device.clear();
  own.host = at::empty(all.sizes(), at::TensorOptions(at::kDouble).pinned_memory(true));
  own.host.copy_(all, /*non_blocking=*/true);
  own.come = std::make_unique<c10::Event>(device_.type());
  own.come->record(at::accelerator::getCurrentStream(device_.index()));
}

MicrobatchLosses StepLosses::take(std::int64_t step) {
  auto node = steps_.extract(step);
  if (node.empty()) return MicrobatchLosses(&memory_);
  Step& own = node.mapped();
  if (own.come) {
    own.come->synchronize();
    for (std::size_t i = 0; i < own.microbatches.size(); ++i)
      own.losses[own.microbatches[i]] = own.host.const_data_ptr<double>()[i];
  }
  return std::move(own.losses);
}

}  // namespace stagecraft::stage
