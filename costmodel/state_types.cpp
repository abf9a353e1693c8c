#include "costmodel/state_types.h"

#include <stdexcept>

#include "costmodel/errors.h"

namespace stagecraft {
namespace {

constexpr std::int64_t kFloat32 = 4;

std::int64_t of(StateType type) { return value_bytes(type).value; }

bool has_masters(const StateTypes& types) { return types.parameters != StateType::Float32; }

/// `each` bytes instead of each `value` bytes of `bytes`; in two steps that do not overflow.
Bytes instead_of(std::int64_t value, std::int64_t each, Bytes bytes) {
  return Bytes(bytes.value / value * each + bytes.value % value * each / value);
}

}  // namespace

const char* to_string(StateType type) { return type == StateType::Float32 ? "float32" : "bfloat16"; }

StateType state_type(const std::string& word) {
  for (const StateType known : {StateType::Float32, StateType::Bfloat16}) {
    if (word == to_string(known)) return known;
  }
  throw InputError(ErrorKind::UnknownName, unknown_name("type", word, {"float32", "bfloat16"}));
}

Bytes value_bytes(StateType type) { return Bytes(type == StateType::Float32 ? kFloat32 : 2); }

void validate(const StateTypes& types, const std::string& dtype) {
  if (types.parameters == StateType::Float32 && types.gradients != StateType::Float32)
    throw std::invalid_argument("gradients in bfloat16 need parameters in bfloat16, found parameters in float32");
  if (types.parameters == StateType::Float32 || dtype.empty() || dtype == to_string(types.parameters)) return;
  throw std::invalid_argument("parameters in bfloat16 need a computation in bfloat16, found " + dtype);
}

Bytes gradient_bytes(const StateTypes& types, Bytes bytes) {
  return instead_of(of(types.parameters), of(types.gradients), bytes);
}

Bytes parameter_bytes(const StateTypes& types, Bytes bytes) {
  return instead_of(of(types.gradients), of(types.parameters), bytes);
}

Bytes optimizer_bytes(const StateTypes& types, std::int64_t values, Bytes bytes) {
  return instead_of(of(types.parameters), values * of(types.moments) + (has_masters(types) ? kFloat32 : 0), bytes);
}

Bytes update_bytes(const StateTypes& types, std::int64_t values, Bytes bytes) {
  const std::int64_t rounded = has_masters(types) ? of(types.parameters) : 0;
  const std::int64_t moved = of(types.gradients) + 2 * kFloat32 + rounded + 2 * values * of(types.moments);
  return instead_of(of(types.parameters), moved, bytes);
}

}  // namespace stagecraft
