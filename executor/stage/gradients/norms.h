#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "costmodel/gradient_sums.h"
#include "executor/channel/channel.h"
#include "executor/model/model.h"
#include "executor/stage/stage_program.h"

namespace stagecraft::stage {

/// By name, the squares of a gradient, added in double over each block of kOwnedBlock values from the parameter's
/// beginning in the order of its memory; the last block may be shorter.
using SquaredBlocks = std::map<std::string, std::vector<double>>;

/// Those of the gradients of `parameters`, or of parts of them that begin with a block; zeros without a gradient.
/// Layers that share a name have the same gradient by then: it counts once.
[[nodiscard]] SquaredBlocks squared_blocks(const std::vector<Parameter>& parameters);

/// Completes the blocks of the parameters of `sums`, which have the same ranks and parts: until then, this rank has
/// those of what it updates. `parameters`: those that the stage holds. All ranks of the sums call it.
void gather_squared_blocks(channel::Channel& channel, const std::vector<const GradientSum*>& sums,
                           const std::vector<HeldParameter>& parameters, SquaredBlocks& blocks);

/// By name, the blocks added in their order: the squared Euclidean norm, which does not depend on who added the blocks.
[[nodiscard]] std::map<std::string, double> squared_norms(const SquaredBlocks& blocks);
/// Those of the gradients of `parameters`.
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
