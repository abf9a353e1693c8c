#include "executor/intake/graph/mask_stream.h"

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/Context.h>
#include <ATen/ops/empty.h>

namespace stagecraft::intake {

at::Tensor MaskStream::draw(at::IntArrayRef sizes, const at::Tensor& like, double keep) {
  if (!generator_.defined() && (like.is_cpu() || like.is_meta())) {
    generator_ = at::make_generator<at::CPUGeneratorImpl>(seed_);
  } else if (!generator_.defined()) {
    const auto& hooks = at::globalContext().getAcceleratorHooksInterface(like.device().type());
    generator_ = hooks.getNewGenerator(like.get_device());
    generator_.set_current_seed(seed_);
  }
  ++drawn_;
  return at::empty(sizes, like.options().requires_grad(false)).bernoulli_(keep, generator_);
}

at::Tensor MaskStream::drop(const at::Tensor& x, double probability) {
  const double keep = 1 - probability;
  return x.mul(draw(x.sizes(), x, keep).div_(keep));
}

void MaskStream::skip(at::IntArrayRef sizes, const at::Tensor& like, double probability) {
  (void)draw(sizes, like, 1 - probability);
}

}  // namespace stagecraft::intake
