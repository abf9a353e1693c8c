#include "executor/device/dtype.h"

#include <array>
#include <stdexcept>
#include <utility>
#include <vector>

#include "costmodel/errors.h"

namespace stagecraft::device {
namespace {

constexpr std::array<std::pair<at::ScalarType, const char*>, 12> kNames{{
    {at::kFloat, "float32"},
    {at::kDouble, "float64"},
    {at::kHalf, "float16"},
    {at::kBFloat16, "bfloat16"},
    {at::kLong, "int64"},
    {at::kInt, "int32"},
    {at::kShort, "int16"},
    {at::kChar, "int8"},
    {at::kByte, "uint8"},
    {at::kBool, "bool"},
    {at::kComplexFloat, "complex64"},
    {at::kComplexDouble, "complex128"},
}};

}  // namespace

std::string dtype_text(at::ScalarType dtype) {
  for (const auto& [type, name] : kNames) {
    if (type == dtype) return name;
  }
  return c10::toString(dtype);
}

std::string dtype_name(at::ScalarType dtype) {
  for (const auto& [type, name] : kNames) {
    if (type == dtype) return name;
  }
  throw std::invalid_argument(std::string("element type ") + c10::toString(dtype) + " cannot be sent between stages");
}

at::ScalarType dtype_of(const std::string& name) {
  std::vector<std::string> known;
  for (const auto& [type, text] : kNames) {
    if (name == text) return type;
    known.emplace_back(text);
  }
  throw InputError(ErrorKind::UnknownName, unknown_name("dtype", name, known));
}

at::ScalarType dtype_of(StateType type) { return type == StateType::Float32 ? at::kFloat : at::kBFloat16; }

at::ScalarType compute_type(const std::string& dtype) {
  if (dtype.empty()) return at::kFloat;
  for (const at::ScalarType type : {at::kFloat, at::kBFloat16, at::kHalf}) {
    if (dtype == dtype_name(type)) return type;
  }
  throw std::invalid_argument("the plan computes in \"" + dtype + "\", expected float32, bfloat16 or float16");
}

}  // namespace stagecraft::device
