#include "executor/intake/graph/program/typed_call.h"

#include <ATen/core/Tensor.h>
#include <ATen/ops/add_ops.h>
#include <ATen/ops/chunk_ops.h>
#include <ATen/ops/contiguous_ops.h>
#include <ATen/ops/cross_entropy_loss_ops.h>
#include <ATen/ops/embedding_ops.h>
#include <ATen/ops/expand_ops.h>
#include <ATen/ops/flatten_ops.h>
#include <ATen/ops/gelu_ops.h>
#include <ATen/ops/layer_norm_ops.h>
#include <ATen/ops/linear_ops.h>
#include <ATen/ops/matmul_ops.h>
#include <ATen/ops/mul_ops.h>
#include <ATen/ops/permute_ops.h>
#include <ATen/ops/relu_ops.h>
#include <ATen/ops/reshape_ops.h>
#include <ATen/ops/scaled_dot_product_attention_ops.h>
#include <ATen/ops/select_ops.h>
#include <ATen/ops/slice_ops.h>
#include <ATen/ops/softmax_ops.h>
#include <ATen/ops/split_ops.h>
#include <ATen/ops/tanh_ops.h>
#include <ATen/ops/transpose_ops.h>
#include <ATen/ops/unflatten_ops.h>
#include <ATen/ops/unsqueeze_ops.h>
#include <ATen/ops/view_ops.h>
#include <c10/core/SymInt.h>
#include <c10/util/SmallVector.h>

#include <algorithm>
#include <array>
#include <stdexcept>
#include <string_view>
#include <tuple>
#include <type_traits>
#include <utility>

#include "costmodel/index.h"

namespace stagecraft::intake {
namespace {

using Form = ArgumentPush::Form;

/// The argument of C++ type P: a constant, converted once, or a value of the frame.
template <typename P>
class Operand {
  using Value = std::decay_t<P>;
  using Kept = std::conditional_t<std::is_same_v<Value, c10::string_view>, std::string, Value>;

 public:
  static bool takes(const ArgumentPush& given) {
    return given.form == Form::Constant || (given.form == Form::Slot && std::is_same_v<Kept, Value>);
  }
  explicit Operand(const ArgumentPush& given) {
    if (given.form == Form::Slot) {
      slot_ = given.parts.front().first;
    } else {
      constant_ = given.constant.to<Kept>();
    }
  }
  [[nodiscard]] Value operator()(const Frame& frame) const {
    return slot_ < 0 ? Value(constant_) : Value(frame.slots[to_index(slot_)].to<Kept>());
  }

 private:
  int slot_ = -1;
  Kept constant_ = {};
};

/// A tensor is used where it lies.
template <>
class Operand<const at::Tensor&> {
 public:
  static bool takes(const ArgumentPush& given) {
    return given.form == Form::Slot || (given.form == Form::Constant && given.constant.isTensor());
  }
  explicit Operand(const ArgumentPush& given) {
    if (given.form == Form::Slot) {
      slot_ = given.parts.front().first;
    } else {
      constant_ = given.constant.toTensor();
    }
  }
  [[nodiscard]] const at::Tensor& operator()(const Frame& frame) const {
    return slot_ < 0 ? constant_ : frame.slots[to_index(slot_)].toTensor();
  }

 private:
  int slot_ = -1;
  at::Tensor constant_;
};

/// Sizes: each a number or a value of the frame.
template <>
class Operand<c10::SymIntArrayRef> {
 public:
  static bool takes(const ArgumentPush& given) {
    return given.form == Form::Ints || (given.form == Form::Constant && given.constant.isIntList());
  }
  explicit Operand(const ArgumentPush& given) : parts_(given.parts) {
    if (given.form != Form::Constant) return;
    for (const std::int64_t number : given.constant.toIntVector()) parts_.emplace_back(-1, number);
  }
  [[nodiscard]] c10::SmallVector<c10::SymInt, 6> operator()(const Frame& frame) const {
    c10::SmallVector<c10::SymInt, 6> out;
    for (const auto& [slot, number] : parts_)
      out.emplace_back(slot < 0 ? number : frame.slots[to_index(slot)].toScalar().toLong());
    return out;
  }

 private:
  std::vector<std::pair<int, std::int64_t>> parts_;
};

template <>
class Operand<at::IntArrayRef> {
 public:
  static bool takes(const ArgumentPush& given) { return given.form == Form::Constant && given.constant.isIntList(); }
  explicit Operand(const ArgumentPush& given) : numbers_(given.constant.toIntVector()) {}
  [[nodiscard]] at::IntArrayRef operator()(const Frame& /*frame*/) const { return numbers_; }

 private:
  std::vector<std::int64_t> numbers_;
};

using MakeCall = std::optional<NodeCall> (*)(const std::vector<ArgumentPush>&, const std::vector<int>&,
                                             const std::string&);

template <typename Operator, typename Result, typename... P>
std::optional<NodeCall> make(const std::vector<ArgumentPush>& arguments, const std::vector<int>& results,
                             const std::string& place) {
  return [&]<std::size_t... I>(std::index_sequence<I...>) -> std::optional<NodeCall> {
    if (!(Operand<P>::takes(arguments[I]) && ...)) return std::nullopt;
    return [operands = std::tuple(Operand<P>(arguments[I])...), results, place](Frame& frame) {
      Result made = Operator::call(std::get<I>(operands)(frame)...);
      if constexpr (std::is_same_v<Result, at::Tensor>) {
        if (results.front() >= 0) frame.slots[to_index(results.front())] = std::move(made);
      } else {
        put_list(std::move(made), results, frame, place);
      }
    };
  }(std::index_sequence_for<P...>());
}

template <typename Operator, typename Result, typename... P>
constexpr MakeCall maker(Result (* /*signature*/)(P...)) {
  return make<Operator, Result, P...>;
}

struct Entry {
  std::string_view name;
  std::string_view overload;
  MakeCall make;
};

template <typename Operator>
constexpr Entry entry() {
  return {Operator::name, Operator::overload_name,
          maker<Operator>(static_cast<typename Operator::ptr_schema>(nullptr))};
}

namespace ops = at::_ops;

constexpr std::array kEntries{
    entry<ops::add_Tensor>(),
    entry<ops::chunk>(),
    entry<ops::contiguous>(),
    entry<ops::cross_entropy_loss>(),
    entry<ops::embedding>(),
    entry<ops::expand>(),
    entry<ops::flatten_using_ints>(),
    entry<ops::gelu>(),
    entry<ops::layer_norm>(),
    entry<ops::linear>(),
    entry<ops::matmul>(),
    entry<ops::mul_Scalar>(),
    entry<ops::mul_Tensor>(),
    entry<ops::permute>(),
    entry<ops::relu>(),
    entry<ops::reshape>(),
    entry<ops::scaled_dot_product_attention>(),
    entry<ops::select_int>(),
    entry<ops::slice_Tensor>(),
    entry<ops::softmax_int>(),
    entry<ops::split_sizes>(),
    entry<ops::tanh>(),
    entry<ops::transpose_int>(),
    entry<ops::unflatten_int>(),
    entry<ops::unsqueeze>(),
    entry<ops::view>(),
};

}  // namespace

std::optional<NodeCall> typed_call(const c10::OperatorName& name, const std::vector<ArgumentPush>& arguments,
                                   const std::vector<int>& results, const std::string& place) {
  const auto it = std::ranges::find_if(
      kEntries, [&](const Entry& entry) { return entry.name == name.name && entry.overload == name.overload_name; });
  return it == kEntries.end() ? std::nullopt : it->make(arguments, results, place);
}

void put_list(std::vector<at::Tensor> tensors, const std::vector<int>& slots, Frame& frame, const std::string& place) {
  if (tensors.size() != slots.size()) {
    throw std::runtime_error(place + ": gave " + std::to_string(tensors.size()) + " tensors, expected " +
                             std::to_string(slots.size()));
  }
  for (std::size_t i = 0; i < slots.size(); ++i) {
    if (slots[i] >= 0) frame.slots[to_index(slots[i])] = std::move(tensors[i]);
  }
}

}  // namespace stagecraft::intake
