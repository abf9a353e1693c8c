#include "executor/intake/torchscript/values/script_operators.h"

#include <algorithm>
#include <array>
#include <cstddef>

namespace stagecraft::intake {
namespace {

template <std::size_t N>
bool is_one_of(const std::string& name, const std::array<const char*, N>& names) {
  return std::ranges::any_of(names, [&](const char* known) { return name == known; });
}

}  // namespace

bool tells_of_shape(const std::string& name) {
  static constexpr std::array kNames{
      "aten::size",  "aten::dim",    "aten::numel",  "aten::len",    "aten::is_floating_point", "aten::is_complex",
      "prim::dtype", "prim::device", "aten::stride", "prim::layout", "aten::is_contiguous"};
  return is_one_of(name, kNames);
}

bool keeps_affine(const std::string& name) {
  static constexpr std::array kNames{"aten::add",   "aten::sub",         "aten::mul",         "aten::neg",
                                     "aten::Int",   "prim::NumToTensor", "aten::IntImplicit", "aten::ScalarImplicit",
                                     "aten::size",  "aten::dim",         "aten::len",         "aten::numel",
                                     "aten::stride"};
  return is_one_of(name, kNames);
}

bool computes_traced_size(const std::string& name) {
  static constexpr std::array kNames{"prim::NumToTensor",  "aten::add",       "aten::sub",  "aten::mul", "aten::neg",
                                     "aten::floor_divide", "aten::remainder", "aten::rsub", "aten::div"};
  return is_one_of(name, kNames);
}

bool has_side_effects(const std::string& name) {
  static constexpr std::array kNames{
      "aten::set_grad_enabled", "aten::manual_seed", "aten::backward",         "aten::wait", "prim::fork",
      "prim::awaitable",        "aten::set_data",    "aten::_set_grad_enabled"};
  return is_one_of(name, kNames) || name.starts_with("prim::rpc_") || name.starts_with("aten::set_num_threads");
}

bool moves_numbers(const std::string& name) {
  static constexpr std::array kNames{"view",    "reshape",   "flatten", "slice", "select", "contiguous", "clone",
                                     "permute", "transpose", "expand",  "alias", "to",     "unsqueeze",  "squeeze"};
  return is_one_of(name, kNames);
}

}  // namespace stagecraft::intake
