#pragma once

#include <cstdint>
#include <string>

#include "costmodel/units.h"

namespace stagecraft {

/// The type of a kind of values that training keeps.
enum class StateType { Float32, Bfloat16 };
/// "float32", "bfloat16": as the dtype of tensors.
[[nodiscard]] const char* to_string(StateType type);
/// The inverse. Throws std::invalid_argument listing the names.
[[nodiscard]] StateType state_type(const std::string& word);
/// Bytes of one value.
[[nodiscard]] Bytes value_bytes(StateType type);

/// The types of what training keeps of parameters. Of a parameter in bfloat16 the optimizer also keeps a float32 master
/// value, which it updates and then rounds into the parameter. Updates compute in float32.
struct StateTypes {
  StateType parameters = StateType::Float32;  ///< with which layers compute, and which replicas gather
  StateType gradients = StateType::Float32;   ///< added up over microbatches and ranks
  StateType moments = StateType::Float32;     ///< of the optimizer: its state like a parameter, without master values
                                              ///< and moving averages
  friend bool operator==(const StateTypes&, const StateTypes&) = default;
};

/// Throws std::invalid_argument for gradients that are less precise than their parameters, and for parameters in
/// bfloat16 where the computation is in another `dtype` than bfloat16; empty: unknown.
void validate(const StateTypes& types, const std::string& dtype);

/// Of parameters of so many `bytes`: the bytes of their gradients.
[[nodiscard]] Bytes gradient_bytes(const StateTypes& types, Bytes bytes);
/// The inverse: the bytes of parameters whose gradients have so many `bytes`.
[[nodiscard]] Bytes parameter_bytes(const StateTypes& types, Bytes bytes);
/// Those of the optimizer's state, which has `values` moments for each value, and of master values.
[[nodiscard]] Bytes optimizer_bytes(const StateTypes& types, std::int64_t values, Bytes bytes);
/// What an update reads and writes: it reads the gradient, reads and writes the moments and what it updates, and writes
/// the parameter if that is not what it updates.
[[nodiscard]] Bytes update_bytes(const StateTypes& types, std::int64_t values, Bytes bytes);

}  // namespace stagecraft
