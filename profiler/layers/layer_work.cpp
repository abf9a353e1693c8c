#include "profiler/layers/layer_work.h"

#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/function_schema.h>
#include <ATen/core/ivalue.h>
#include <ATen/record_function.h>
#include <c10/util/ThreadLocalDebugInfo.h>

#include <algorithm>
#include <functional>
#include <initializer_list>
#include <numeric>
#include <set>
#include <string>
#include <string_view>
#include <unordered_map>

#include "costmodel/index.h"

namespace stagecraft::profiler {
namespace {

constexpr double kNormForward = 7;
constexpr double kNormBackward = 13;
constexpr double kSoftmaxForward = 5;
constexpr double kSoftmaxBackward = 4;

double product(const std::vector<std::int64_t>& factors, std::size_t from = 0) {
  double out = 1;
  for (std::size_t i = from; i < factors.size(); ++i) out *= static_cast<double>(factors[i]);
  return out;
}

const CountedTensor& nothing() {
  static const CountedTensor none{{0}, Bytes(0), false};
  return none;
}

const CountedTensor& first(const std::vector<CountedArgument>& all, std::size_t i) {
  return i < all.size() && !all[i].tensors.empty() ? all[i].tensors.front() : nothing();
}

const CountedTensor& argument(const OperatorCall& call, std::size_t i) { return first(call.arguments, i); }
const CountedTensor& result(const OperatorCall& call, std::size_t i) { return first(call.results, i); }

double values(const CountedTensor& tensor) { return static_cast<double>(tensor.values()); }

Bytes bytes_of(const std::vector<CountedArgument>& all, std::size_t from = 0) {
  Bytes out;
  for (std::size_t i = from; i < all.size(); ++i) {
    for (const CountedTensor& tensor : all[i].tensors) out += tensor.bytes;
  }
  return out;
}

double result_values(const OperatorCall& call) {
  double out = 0;
  for (const CountedArgument& result : call.results) {
    for (const CountedTensor& tensor : result.tensors) out += tensor.floating ? values(tensor) : 0;
  }
  return out;
}

using FlopsOf = std::function<double(const OperatorCall&)>;
using BytesOf = std::function<Bytes(const OperatorCall&)>;

struct Formula {
  FlopsOf flops;
  BytesOf bytes;  ///< empty: inputs and results
};

double none(const OperatorCall&) { return 0; }

/// `factor` for each value of argument `i`.
FlopsOf per_value_of(std::size_t i, double factor = 1) {
  return [=](const OperatorCall& call) { return factor * values(argument(call, i)); };
}

/// Of argument `a`, whose last axis is summed over, times the columns of argument `b`.
FlopsOf matrix_product(std::size_t a, std::size_t b) {
  return [=](const OperatorCall& call) {
    const std::vector<std::int64_t>& columns = argument(call, b).shape;
    // A vector has one column.
    const double n = columns.size() > 1 ? static_cast<double>(columns.back()) : 1;
    return 2 * values(argument(call, a)) * n;
  };
}

/// Multiply-adds: every value of the smaller side of the convolution (results, or inputs if transposed) sums over one
/// window of the weight, whose axes but the first are the channels of its group and the kernel.
double convolution_flops(const CountedTensor& input, const CountedTensor& weight, const CountedTensor& output,
                         bool transposed) {
  return 2 * values(transposed ? input : output) * product(weight.shape, 1);
}

bool transposed(const OperatorCall& call, std::size_t i) {
  return i < call.arguments.size() && !call.arguments[i].integers.empty() && call.arguments[i].integers.front() != 0;
}

/// convolution(input, weight, bias, stride, padding, dilation, transposed, ...)
double convolution(const OperatorCall& call) {
  return convolution_flops(argument(call, 0), argument(call, 1), result(call, 0), transposed(call, 6));
}

/// convolution_backward(grad_output, input, weight, bias_sizes, stride, padding, dilation, transposed, ...): each of
/// the two gradients is a convolution with as many multiply-adds as the forward, that of the bias one sum.
double convolution_backward(const OperatorCall& call) {
  const double once = convolution_flops(argument(call, 1), argument(call, 2), argument(call, 0), transposed(call, 7));
  double out = 0;
  for (const std::size_t gradient : {0U, 1U}) out += values(result(call, gradient)) > 0 ? once : 0;
  return out + (values(result(call, 2)) > 0 ? values(argument(call, 0)) : 0);
}

/// Fused attention over query [batch, heads, s, d], key and value, which begin at argument `i`: `with_d` products that
/// sum over or result in d, and `with_v` over the values' width.
FlopsOf attention(std::size_t i, double with_d, double with_v) {
  return [=](const OperatorCall& call) {
    const std::vector<std::int64_t>& query = argument(call, i).shape;
    const std::vector<std::int64_t>& key = argument(call, i + 1).shape;
    const std::vector<std::int64_t>& value = argument(call, i + 2).shape;
    if (query.size() != 4 || key.size() != 4 || value.size() != 4) return 0.0;
    const double scores = product({query[0], query[1], query[2], key[2]});
    return 2 * scores * (with_d * static_cast<double>(query[3]) + with_v * static_cast<double>(value[3]));
  };
}

/// Of a whole sequence, argument 0 with its width last: each matrix among arguments 1 to 4 is multiplied with every
/// element of the sequence.
FlopsOf recurrent(double passes) {
  return [=](const OperatorCall& call) {
    const CountedTensor& input = argument(call, 0);
    double weights = 0;
    for (std::size_t i = 1; i < call.arguments.size() && i <= 4; ++i) {
      for (const CountedTensor& tensor : call.arguments[i].tensors)
        weights += tensor.shape.size() == 2 ? values(tensor) : 0;
    }
    const double width = input.shape.empty() ? 1 : static_cast<double>(input.shape.back());
    return width > 0 ? passes * 2 * values(input) / width * weights : 0;
  };
}

/// Each value of argument 0 or of the result, `of_result`, for each value of the window in argument `kernel`.
FlopsOf window(std::size_t kernel, bool of_result, double axes) {
  return [=](const OperatorCall& call) {
    if (kernel >= call.arguments.size()) return 0.0;
    const std::vector<std::int64_t>& sides = call.arguments[kernel].integers;
    double size = product(sides);
    if (sides.size() == 1 && axes == 2) size *= size;
    return size * values(of_result ? result(call, 0) : argument(call, 0));
  };
}

Bytes only_results(const OperatorCall& call) { return bytes_of(call.results); }
Bytes without_first(const OperatorCall& call) { return bytes_of(call.arguments, 1) + bytes_of(call.results); }

/// A look-up in argument 0: what it returns was read as well.
Bytes looked_up(const OperatorCall& call) {
  return bytes_of(call.arguments, 1) + bytes_of(call.results) + bytes_of(call.results);
}

/// Reads one value a row of argument 0, and its index.
Bytes one_per_row(const OperatorCall& call) {
  const CountedTensor& table = argument(call, 0);
  const std::int64_t item = table.values() > 0 ? table.bytes.value / table.values() : 0;
  return bytes_of(call.arguments, 1) + bytes_of(call.results) + Bytes(argument(call, 1).values() * item);
}

using Formulas = std::unordered_map<std::string_view, Formula>;

void add(Formulas& out, std::initializer_list<const char*> names, const FlopsOf& flops, const BytesOf& bytes = {}) {
  for (const char* name : names) out.emplace(name, Formula{flops, bytes});
}

Formulas make_formulas() {
  Formulas out;
  add(out, {"aten::mm", "aten::bmm", "aten::mv", "aten::dot"}, matrix_product(0, 1));
  add(out, {"aten::addmm", "aten::addmm_", "aten::baddbmm", "aten::baddbmm_", "aten::addmv", "aten::_addmm_activation"},
      matrix_product(1, 2));
  add(out, {"aten::convolution", "aten::_convolution"}, convolution);
  add(out, {"aten::convolution_backward"}, convolution_backward);
  add(out,
      {"aten::_scaled_dot_product_flash_attention_for_cpu", "aten::_scaled_dot_product_flash_attention",
       "aten::_scaled_dot_product_efficient_attention", "aten::_scaled_dot_product_cudnn_attention"},
      attention(0, 1, 1));
  add(out,
      {"aten::_scaled_dot_product_flash_attention_for_cpu_backward",
       "aten::_scaled_dot_product_flash_attention_backward", "aten::_scaled_dot_product_efficient_attention_backward",
       "aten::_scaled_dot_product_cudnn_attention_backward"},
      attention(1, 3, 2));
  add(out, {"aten::mkldnn_rnn_layer", "aten::_cudnn_rnn"}, recurrent(1));
  add(out, {"aten::mkldnn_rnn_layer_backward", "aten::_cudnn_rnn_backward"}, recurrent(2));
  add(out,
      {"aten::native_batch_norm", "aten::_native_batch_norm_legit", "aten::_batch_norm_with_update",
       "aten::cudnn_batch_norm", "aten::native_layer_norm", "aten::native_group_norm"},
      per_value_of(0, kNormForward));
  add(out,
      {"aten::native_batch_norm_backward", "aten::batch_norm_backward", "aten::cudnn_batch_norm_backward",
       "aten::native_layer_norm_backward", "aten::native_group_norm_backward"},
      per_value_of(0, kNormBackward));
  add(out, {"aten::_softmax", "aten::_log_softmax"}, per_value_of(0, kSoftmaxForward));
  add(out, {"aten::_softmax_backward_data", "aten::_log_softmax_backward_data"}, per_value_of(0, kSoftmaxBackward));
  add(out,
      {"aten::sum", "aten::mean", "aten::prod", "aten::max", "aten::min", "aten::amax", "aten::amin", "aten::argmax",
       "aten::argmin", "aten::cumsum", "aten::_adaptive_avg_pool2d"},
      per_value_of(0));
  add(out, {"aten::max_pool2d_with_indices", "aten::avg_pool2d"}, window(1, true, 2));
  add(out, {"aten::max_pool2d_with_indices_backward"}, per_value_of(0));
  add(out, {"aten::avg_pool2d_backward"}, window(2, false, 2));
  add(out, {"aten::nll_loss_forward"}, per_value_of(1), one_per_row);
  add(out, {"aten::nll_loss_backward"}, per_value_of(2), [](const OperatorCall& call) {
    return argument(call, 0).bytes + bytes_of(call.arguments, 2) + bytes_of(call.results);
  });
  add(out, {"aten::embedding", "aten::index_select", "aten::gather"}, none, looked_up);
  add(out, {"aten::embedding_dense_backward"}, per_value_of(0));
  add(out,
      {"aten::fill_", "aten::zero_", "aten::zeros", "aten::ones", "aten::full", "aten::zeros_like", "aten::ones_like",
       "aten::full_like", "aten::new_zeros", "aten::new_ones", "aten::new_full", "aten::arange", "aten::scalar_tensor"},
      none, only_results);
  add(out, {"aten::copy_"}, none, without_first);
  add(out,
      {"aten::clone", "aten::cat", "aten::stack", "aten::where", "aten::masked_fill", "aten::masked_fill_",
       "aten::constant_pad_nd", "aten::roll", "aten::flip", "aten::repeat", "aten::tril", "aten::triu", "aten::tril_",
       "aten::triu_"},
      none);
  return out;
}

const Formulas& formulas() {
  static const Formulas all = make_formulas();
  return all;
}

}  // namespace

std::int64_t CountedTensor::values() const {
  return std::accumulate(shape.begin(), shape.end(), std::int64_t{1}, std::multiplies<>());
}

bool has_formula(const std::string& name) { return formulas().contains(name); }

bool moves_nothing(const std::string& name) {
  static const std::set<std::string_view> names{"aten::empty",
                                                "aten::empty_like",
                                                "aten::empty_strided",
                                                "aten::new_empty",
                                                "aten::new_empty_strided",
                                                "aten::_unsafe_view",
                                                "aten::resize_",
                                                "aten::unsafe_chunk",
                                                "aten::item",
                                                "aten::_local_scalar_dense",
                                                "aten::unsafe_split",
                                                "aten::unsafe_split_with_sizes",
                                                "aten::result_type",
                                                "aten::set_",
                                                "aten::is_same_size",
                                                "aten::is_nonzero",
                                                "aten::lift_fresh"};
  return names.contains(name);
}

Work work_of(const OperatorCall& call) {
  const auto found = formulas().find(call.name);
  if (found == formulas().end())
    return {Flops(result_values(call)), bytes_of(call.arguments) + bytes_of(call.results), 1};
  const Formula& formula = found->second;
  return {Flops(formula.flops(call)),
          formula.bytes ? formula.bytes(call) : bytes_of(call.arguments) + bytes_of(call.results), 1};
}

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
