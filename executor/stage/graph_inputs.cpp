#include "executor/stage/graph_inputs.h"

#include <torch/csrc/autograd/function.h>
#include <torch/csrc/autograd/functions/utils.h>

#include <cstddef>
#include <utility>

namespace stagecraft::stage {
namespace {

/// Keeps the gradient that reaches it.
struct InputNode : torch::autograd::Node {
  torch::autograd::variable_list apply(torch::autograd::variable_list&& gradients) override {
    gradient = std::move(gradients.front());
    return {};
  }
  at::Tensor gradient;
};

/// Keeps the memory that it allocates from.
template <class T>
struct SharedMemory {
  using value_type = T;
  explicit SharedMemory(std::shared_ptr<std::pmr::memory_resource> memory) : resource(std::move(memory)) {}
  template <class U>
  SharedMemory(const SharedMemory<U>& other) : resource(other.resource) {}  // NOLINT(google-explicit-constructor)
  T* allocate(std::size_t n) { return static_cast<T*>(resource->allocate(n * sizeof(T), alignof(T))); }
  void deallocate(T* at, std::size_t n) { resource->deallocate(at, n * sizeof(T), alignof(T)); }
  bool operator==(const SharedMemory&) const = default;
  std::shared_ptr<std::pmr::memory_resource> resource;
};

}  // namespace

at::Tensor GraphInputs::make(const at::Tensor& value) const {
  at::Tensor out = value.detach();
  torch::autograd::set_history(out, std::allocate_shared<InputNode>(SharedMemory<InputNode>(memory_)));
  return out;
}

at::Tensor GraphInputs::take_gradient(const at::Tensor& input) {
  const auto& node = input.grad_fn();
  return node ? std::exchange(dynamic_cast<InputNode&>(*node).gradient, {}) : input.grad();
}

}  // namespace stagecraft::stage
