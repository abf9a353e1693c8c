#pragma once

#include <map>
#include <string>
#include <vector>

#include "executor/channel/channel.h"
#include "executor/stage/stage_program.h"

namespace stagecraft::stage {

/// Squared Euclidean norm of each parameter's gradient, in double, by name; 0 without one. Layers that share a name
/// have the same gradient by then: it counts once.
[[nodiscard]] std::map<std::string, double> squared_norms(const std::vector<Parameter>& parameters);

/// The whole model's squared norms, gathered from the `norms` of each rank: `names` are those of all parameters,
/// ascending. All ranks call it.
[[nodiscard]] std::map<std::string, double> gather_squared_norms(channel::Channel& channel,
                                                                 const std::map<std::string, double>& norms,
                                                                 const std::vector<std::string>& names);

/// Euclidean norm of the mean gradient: that of the sum, whose squared norms are `squared`, divided by `divisor`. The
/// squares are added in the order of their names, so that every rank of every plan gets the same bits.
[[nodiscard]] double gradient_norm(const std::map<std::string, double>& squared, double divisor);

/// What to divide summed gradients by, beyond `divisor`, so that the norm of their mean is at most `limit`: 1, or
/// norm / limit if that is more.
[[nodiscard]] double clip_divisor(const std::map<std::string, double>& squared, double divisor, double limit);

/// Names of all trainable parameters of `model`, ascending, each once.
[[nodiscard]] std::vector<std::string> trainable_names(const model::Model& model);

}  // namespace stagecraft::stage
