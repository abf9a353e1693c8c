#include "executor/stage/split_backward.h"

#include <ATen/ops/ones_like.h>
#include <torch/csrc/autograd/autograd.h>
#include <torch/csrc/autograd/engine.h>
#include <torch/csrc/autograd/function.h>
#include <torch/csrc/autograd/function_hook.h>
#include <torch/csrc/autograd/functions/accumulate_grad.h>
#include <torch/csrc/autograd/functions/utils.h>

#include <algorithm>
#include <cstddef>
#include <iterator>
#include <set>
#include <unordered_map>
#include <unordered_set>
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

namespace {

using torch::autograd::AccumulateGrad;
using torch::autograd::Edge;
using torch::autograd::Node;
using torch::autograd::variable_list;

/// What the graph under some roots reaches.
class Reach {
 public:
  Reach(const std::vector<at::Tensor>& roots, const std::vector<at::Tensor>& inputs) {
    for (const at::Tensor& input : inputs) {
      if (input.requires_grad()) inputs_.insert(torch::autograd::impl::gradient_edge(input).function.get());
    }
    for (const at::Tensor& root : roots) visit(torch::autograd::impl::gradient_edge(root).function.get());
  }
  /// Nodes through which gradients reach an input.
  [[nodiscard]] bool to_input(Node* node) const { return to_input_.at(node); }
  /// Parameters' accumulators that are reached from `node` without passing through a node that leads to an input.
  [[nodiscard]] std::set<Node*> weights(Node* node) const {
    std::set<Node*> out;
    collect(node, out);
    return out;
  }
  [[nodiscard]] const std::vector<Node*>& nodes() const { return nodes_; }

 private:
  /// Post-order traversal without recursion: graphs are deep.
  void visit(Node* root) {
    std::vector<std::pair<Node*, std::size_t>> stack;
    const auto enter = [&](Node* node) {
      if (to_input_.contains(node) || open_.contains(node)) return;
      open_.insert(node);
      stack.emplace_back(node, 0);
    };
    enter(root);
    while (!stack.empty()) {
      auto& [node, next] = stack.back();
      if (next < node->num_outputs()) {
        Node* const child = node->next_edge(next++).function.get();
        if (child) enter(child);
        continue;
      }
      bool reaches = inputs_.contains(node);
      for (const Edge& edge : node->next_edges())
        reaches = reaches || (edge.is_valid() && to_input_.at(edge.function.get()));
      to_input_[node] = reaches;
      nodes_.push_back(node);
      stack.pop_back();
    }
  }
  /// Enters each node once: layers that read a value several times have exponentially many paths.
  void collect(Node* start, std::set<Node*>& out) const {
    std::vector<Node*> stack{start};
    std::unordered_set<Node*> seen;
    while (!stack.empty()) {
      Node* const node = stack.back();
      stack.pop_back();
      if (dynamic_cast<AccumulateGrad*>(node)) {
        if (!inputs_.contains(node)) out.insert(node);
        continue;
      }
      for (const Edge& edge : node->next_edges()) {
        Node* const child = edge.function.get();
        if (edge.is_valid() && !to_input_.at(child) && seen.insert(child).second) stack.push_back(child);
      }
    }
  }
  std::unordered_set<Node*> inputs_;
  std::unordered_set<Node*> open_;
  std::unordered_map<Node*, bool> to_input_;
  std::vector<Node*> nodes_;
};

/// A node whose input gradient is being computed and whose weights wait.
struct Waiting {
  std::shared_ptr<Node> node;
  torch::autograd::edge_list weights;
  variable_list gradients;  ///< that came into the node
};

struct Capture : torch::autograd::FunctionPreHook {
  explicit Capture(Waiting& w) : waiting(w) {}
  variable_list operator()(const variable_list& gradients) override { return waiting.gradients = gradients; }
  Waiting& waiting;
};

/// Captures the gradients of each waiting node while it exists.
class Captures {
 public:
  explicit Captures(const std::vector<std::unique_ptr<Waiting>>& all) : all_(all) {
    for (const auto& waiting : all_) {
      auto capture = std::make_unique<Capture>(*waiting);
      own_.push_back(capture.get());
      waiting->node->add_pre_hook(std::move(capture));
    }
  }
  ~Captures() {
    for (std::size_t i = 0; i < all_.size(); ++i)
      std::erase_if(all_[i]->node->pre_hooks(), [&](const auto& hook) { return hook.get() == own_[i]; });
  }
  Captures(const Captures&) = delete;
  Captures& operator=(const Captures&) = delete;

 private:
  const std::vector<std::unique_ptr<Waiting>>& all_;
  std::vector<const Capture*> own_;
};

}  // namespace

struct SplitBackward::Rest {
  std::vector<std::unique_ptr<Waiting>> waiting;
};

SplitBackward::SplitBackward() = default;
SplitBackward::~SplitBackward() = default;
SplitBackward::SplitBackward(SplitBackward&&) noexcept = default;
SplitBackward& SplitBackward::operator=(SplitBackward&&) noexcept = default;

std::pair<std::vector<at::Tensor>, SplitBackward> SplitBackward::of_inputs(const std::vector<at::Tensor>& roots,
                                                                           const std::vector<at::Tensor>& gradients,
                                                                           const std::vector<at::Tensor>& inputs) {
  std::pair<std::vector<at::Tensor>, SplitBackward> out;
  const Reach reach(roots, inputs);
  auto rest = std::make_unique<Rest>();
  std::set<Node*> claimed;
  bool once = true;
  std::size_t used = 0;
  const auto wait_for = [&](const std::shared_ptr<Node>& node, variable_list incoming) {
    auto waiting = std::make_unique<Waiting>();
    waiting->node = node;
    waiting->gradients = std::move(incoming);
    for (Node* const weight : reach.weights(node.get())) {
      once = once && claimed.insert(weight).second;
      waiting->weights.emplace_back(weight->getptr(), 0);
    }
    if (!waiting->weights.empty()) rest->waiting.push_back(std::move(waiting));
  };
  std::unordered_set<Node*> above;  // roots that only lead to weights
  for (std::size_t i = 0; i < roots.size(); ++i) {
    const Edge edge = torch::autograd::impl::gradient_edge(roots[i]);
    if (reach.to_input(edge.function.get())) {
      ++used;
      continue;
    }
    once = once && above.insert(edge.function.get()).second;
    variable_list incoming(edge.input_nr + 1);
    incoming[edge.input_nr] = gradients[i].defined() ? gradients[i] : at::ones_like(roots[i]);
    wait_for(edge.function, std::move(incoming));
  }
  for (Node* const node : reach.nodes()) {
    if (reach.to_input(node) && !dynamic_cast<AccumulateGrad*>(node)) wait_for(node->getptr(), {});
  }
  if (used == 0 || !once) {
    torch::autograd::backward(roots, gradients);
    for (const at::Tensor& input : inputs) out.first.push_back(GraphInputs::take_gradient(input));
    return out;
  }

  variable_list through;
  variable_list through_gradients;
  variable_list wanted;
  for (std::size_t i = 0; i < roots.size(); ++i) {
    if (!reach.to_input(torch::autograd::impl::gradient_edge(roots[i]).function.get())) continue;
    through.push_back(roots[i]);
    through_gradients.push_back(gradients[i].defined() ? gradients[i] : at::ones_like(roots[i]));
  }
  for (const at::Tensor& input : inputs) {
    if (input.requires_grad()) wanted.push_back(input);
  }
  const Captures captures(rest->waiting);
  const variable_list found = torch::autograd::grad(through, wanted, through_gradients, /*retain_graph=*/true,
                                                    /*create_graph=*/false, /*allow_unused=*/true);
  std::size_t next = 0;
  for (const at::Tensor& input : inputs) out.first.push_back(input.requires_grad() ? found[next++] : at::Tensor());
  out.second.rest_ = std::move(rest);
  return out;
}

void SplitBackward::before(SplitBackward earlier) {
  if (!earlier.rest_) return;
  if (rest_) std::ranges::move(rest_->waiting, std::back_inserter(earlier.rest_->waiting));
  rest_ = std::move(earlier.rest_);
}

void SplitBackward::of_weights() {
  if (!rest_) return;
  const std::unique_ptr<Rest> rest = std::move(rest_);
  // Later nodes first, as in a single backward.
  for (auto it = rest->waiting.rbegin(); it != rest->waiting.rend(); ++it) {
    Waiting& waiting = **it;
    torch::autograd::edge_list edges;
    variable_list gradients;
    for (std::size_t i = 0; i < waiting.gradients.size(); ++i) {
      if (!waiting.gradients[i].defined()) continue;
      edges.emplace_back(waiting.node, static_cast<std::uint32_t>(i));
      gradients.push_back(waiting.gradients[i]);
    }
    if (edges.empty()) continue;
    // What a node saved is released with it, below.
    torch::autograd::Engine::get_default_engine().execute(edges, gradients, /*keep_graph=*/true,
                                                          /*create_graph=*/false, /*accumulate_grad=*/true,
                                                          waiting.weights);
    for (const Edge& weight : waiting.weights)
      materialize_gradient(dynamic_cast<AccumulateGrad&>(*weight.function).variable);
    it->reset();
  }
}

}  // namespace stagecraft::stage
