#include "profiler/layers/layer_work.h"

#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/function_schema.h>
#include <ATen/core/ivalue.h>
#include <ATen/record_function.h>
#include <c10/util/ThreadLocalDebugInfo.h>

#include <algorithm>
#include <initializer_list>
#include <string>

#include "costmodel/index.h"

namespace stagecraft::profiler {
namespace {

/// A slot of LibTorch's thread-local information that training does not use; BackwardWatcher has another. It travels
/// with the work to autograd's own threads.
constexpr auto kSlot = c10::DebugInfoKind::INFERENCE_CONTEXT;

CountedTensor counted(const at::Tensor& tensor) {
  std::int64_t bytes = tensor.numel() * static_cast<std::int64_t>(tensor.element_size());
  // An expanded tensor reads the same memory again.
  if (tensor.has_storage()) bytes = std::min(bytes, static_cast<std::int64_t>(tensor.storage().nbytes()));
  return {tensor.sizes().vec(), Bytes(bytes), tensor.is_floating_point() || tensor.is_complex()};
}

CountedArgument counted(const c10::IValue& value) {
  CountedArgument out;
  const auto add = [&](const at::Tensor& tensor) {
    if (tensor.defined()) out.tensors.push_back(counted(tensor));
  };
  if (value.isTensor()) {
    add(value.toTensor());
  } else if (value.isTensorList()) {
    for (const at::Tensor& tensor : value.toTensorVector()) add(tensor);
  } else if (value.isList()) {  // of optional tensors, as index has
    for (const c10::IValue& item : value.toListRef()) {
      if (item.isTensor()) add(item.toTensor());
      if (item.isInt()) out.integers.push_back(item.toInt());
    }
  } else if (value.isBool()) {
    out.integers = {value.toBool() ? 1 : 0};
  } else if (value.isInt()) {
    out.integers = {value.toInt()};
  }
  return out;
}

/// What is known of an operator before it runs.
struct OperatorKind {
  bool known = false;         ///< else it is a range that LibTorch records, such as an autograd node's
  std::vector<bool> written;  ///< by argument: whether the caller gives it for a result
  bool view = false;          ///< its results only look at the arguments' memory
  bool composite = false;     ///< it has no kernel of its own, only calls other operators
};

OperatorKind kind_of(const c10::OperatorName& name) {
  OperatorKind out;
  const auto handle = c10::Dispatcher::singleton().findSchema(name);
  if (!handle) return out;
  out.known = true;
  const c10::FunctionSchema& schema = handle->schema();
  for (const c10::Argument& argument : schema.arguments()) out.written.push_back(argument.is_out());
  out.view = !schema.returns().empty() && std::ranges::all_of(schema.returns(), [](const c10::Argument& result) {
    return result.alias_info() && !result.alias_info()->isWrite();
  });
  out.composite =
      std::ranges::none_of(std::initializer_list{c10::DispatchKey::CPU, c10::DispatchKey::CUDA},
                           [&](c10::DispatchKey device) { return handle->hasKernelForDispatchKey(device); });
  return out;
}

}  // namespace

struct LayerWorkCounter::State : c10::DebugInfoBase {
  void add(const Work& work) {
    if (layer >= 0) (in_backward ? backward : forward)[to_index(layer)] += work;
  }

  std::vector<Work> forward;
  std::vector<Work> backward;
  int layer = -1;
  bool in_backward = false;
  std::unique_ptr<c10::DebugInfoGuard> guard;
  at::CallbackHandle callback = 0;
};

namespace {

/// An operator that runs, with the work of those that it called.
struct RunningOperator : at::ObserverContext {
  OperatorCall call;
  OperatorKind kind;
  Work called;
  RunningOperator* caller = nullptr;
};

/// The innermost operator that this thread runs.
thread_local RunningOperator* innermost = nullptr;

std::unique_ptr<at::ObserverContext> begin_operator(const at::RecordFunction& function) {
  auto out = std::make_unique<RunningOperator>();
  out->call.name = function.name();
  if (const auto name = function.operator_name()) out->kind = kind_of(*name);
  for (const c10::IValue& value : function.inputs()) {
    const std::size_t i = out->call.arguments.size();
    const bool written = i < out->kind.written.size() && out->kind.written[i];
    out->call.arguments.push_back(written ? CountedArgument{} : counted(value));
  }
  out->caller = innermost;
  innermost = out.get();
  return out;
}

/// What the operator did, now that it is done.
Work end_operator(const at::RecordFunction& function, RunningOperator& done) {
  innermost = done.caller;
  if (!done.kind.known) return done.called;
  if (!has_formula(done.call.name)) {
    // Operators with a kernel may call others on their way, for copies and scalars: only the kernel counts.
    if (done.kind.composite && done.called.operators > 0) return done.called;
    if (done.kind.view || moves_nothing(done.call.name)) return done.called;
  }
  for (const c10::IValue& value : function.outputs()) done.call.results.push_back(counted(value));
  return work_of(done.call);
}

}  // namespace

LayerWorkCounter::LayerWorkCounter(std::size_t layers, const std::vector<stage::Parameter>& parameters)
    : state_(std::make_shared<State>()) {
  state_->forward.resize(layers);
  state_->backward.resize(layers);
  watcher_ =
      std::make_unique<BackwardWatcher>(parameters, [state = state_.get()](int layer, Phase) { state->layer = layer; });
  state_->guard = std::make_unique<c10::DebugInfoGuard>(kSlot, state_);
  state_->callback = at::addThreadLocalCallback(
      at::RecordFunctionCallback([](const at::RecordFunction& function) { return begin_operator(function); },
                                 [](const at::RecordFunction& function, at::ObserverContext* context) {
                                   if (context == nullptr) return;  // begin_operator has thrown
                                   auto& done = static_cast<RunningOperator&>(*context);
                                   const Work work = end_operator(function, done);
                                   if (done.caller) {
                                     done.caller->called += work;
                                   } else if (auto* state =
                                                  static_cast<State*>(c10::ThreadLocalDebugInfo::get(kSlot))) {
                                     state->add(work);
                                   }
                                 })
          .needsInputs(true)
          .needsOutputs(true)
          .scopes({at::RecordScope::FUNCTION}));
}

LayerWorkCounter::~LayerWorkCounter() {
  at::removeCallback(state_->callback);
  state_->guard.reset();
}

void LayerWorkCounter::begin(int layer) {
  watcher_->begin(layer);
  state_->layer = layer;
}

void LayerWorkCounter::end(int layer) {
  state_->layer = -1;
  watcher_->end(layer);
}

void LayerWorkCounter::begin_backward() {
  state_->in_backward = true;
  watcher_->begin_backward();
}

void LayerWorkCounter::end_backward() {
  watcher_->end_backward();
  state_->in_backward = false;
  state_->layer = -1;
}

const std::vector<Work>& LayerWorkCounter::forward() const { return state_->forward; }
const std::vector<Work>& LayerWorkCounter::backward() const { return state_->backward; }

WorkByLayer count_work(Subject& subject, std::size_t layers, const std::vector<at::Tensor>& batch) {
  const std::vector<stage::Parameter>& parameters = subject.program().leaves();
  const auto run = [&](LayerWorkCounter& counter) {
    subject.observe(batch, counter, [&] { counter.begin_backward(); }, [&] { counter.end_backward(); });
  };
  const bool fresh = std::ranges::any_of(
      parameters, [](const stage::Parameter& parameter) { return !parameter.value.grad().defined(); });
  if (fresh) {
    LayerWorkCounter unused(layers, parameters);
    run(unused);
  }
  LayerWorkCounter counter(layers, parameters);
  run(counter);
  return {counter.forward(), counter.backward()};
}

}  // namespace stagecraft::profiler
