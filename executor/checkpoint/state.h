#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "costmodel/format/checkpoint_manifest.h"
#include "costmodel/gradient_sums.h"
#include "executor/files/safetensors.h"
#include "executor/files/tensor_files.h"
#include "executor/model/model.h"
#include "executor/stage/optimizer.h"
#include "executor/stage/stage_program.h"

// The tensors of a run in files: a stage's parameters and buffers and the optimizer's state, under names that do not
// depend on the plan.

namespace stagecraft::checkpoint {

/// A part of a tensor to be written. `tensor` is the tensor's name, `shape` that of all of it.
struct StatePiece {
  std::string tensor;
  std::vector<std::int64_t> shape;
  TensorSlice part;
  at::Tensor values;
};
/// Throws std::invalid_argument naming layer and buffer if `model` has a buffer that changes in training and has a type
/// that checkpoints cannot store. Other buffers of such types are not stored: they keep the model's values.
void check_can_save(const model::Model& model);

/// What determines which optimizer state a checkpoint has.
[[nodiscard]] stage::OptimizerOptions saved_optimizer(const format::CheckpointManifest& manifest);

/// What a rank writes of the parameter or buffer with this name, which has so many `values`, and of a parameter's
/// state: values in the order of its memory, or nothing. The ranges of all ranks hold each value once.
using OwnedRanges = std::function<std::optional<ValueRange>(const std::string& name, std::int64_t values)>;

/// Adds to `out` what is `owned` of the stage's parameters and buffers, and of the optimizer's state as
/// optimizer.first/NAME, optimizer.second/NAME, optimizer.third/NAME, optimizer.steps/NAME, optimizer.product/NAME,
/// optimizer.average/NAME and optimizer.master/NAME (see OptimizerState), none for a parameter that had no gradient
/// yet. Parameter i of `optimizer` is parameter i of `program`, or a vector of the values of it that are owned, in the
/// order of its memory. Shares memory with both.
void collect_state(stage::StageProgram& program, const stage::Optimizer& optimizer, const OwnedRanges& owned,
                   std::vector<StatePiece>& out);
/// Where in a parameter are the values that the optimizer has of it, where it has a part.
using UpdatedRanges = std::function<ValueRange(const std::string& parameter)>;

/// Sets all parameters and buffers, and the state of what the optimizer updates, from `files`. Of a parameter without
/// memory, only what the optimizer has. Parameters, moments and averages may be in float32 or bfloat16, whichever the
/// program and the optimizer have. A float32 parameter takes the checkpoint's master value, and a float32 parameter of
/// the checkpoint is the master value of one in bfloat16. Throws FormatError naming file and tensor for one of another
/// shape or dtype. What is absent is left as it is: see check_names.
void load_state(const files::TensorFiles& files, stage::StageProgram& program, stage::Optimizer& optimizer,
                const UpdatedRanges& updated = nullptr);
/// Sets parameters, and the buffers present, from `files`. A floating-point tensor may have any floating dtype, others
/// must have the same dtype. Throws FormatError as load_state does. `optimizer` is needed where parameters have no
/// memory.
void load_weights(const files::TensorFiles& files, stage::StageProgram& program,
                  const stage::Optimizer* optimizer = nullptr, const UpdatedRanges& updated = nullptr);

/// Throws FormatError naming the tensors that `model` under `optimizer` does not know (listing those it does), and
/// those that are missing: parameters, buffers, or a part of a parameter's state. All of a parameter's state may be
/// absent.
void check_names(const files::TensorFiles& files, const model::Model& model, const stage::OptimizerOptions& optimizer);
/// Gives the moving averages of a checkpoint the names of their parameters, which take their values from then on. False
/// if it has none.
bool use_averages(files::TensorFiles& files);

/// Further names of tied tensors, and the name that layers use for each, as intake::tied_names gives them.
using TiedNames = std::map<std::string, std::string>;

/// The files of weights at `path`, see tensor_file_paths, with the model's names: without the prefixes of wrappers
/// (`module.`, `model.`, and `_orig_mod.` anywhere) where the model has the rest of the name, and a tied tensor under
/// the name that layers use, of which safetensors' save_model keeps only one. Throws as TensorFiles.
[[nodiscard]] files::TensorFiles open_weights(const std::string& path, const model::Model& model,
                                              const TiedNames& tied);

/// The same for files of weights: they must have all parameters, may have buffers, batch norm's num_batches_tracked (in
/// the model or not) and the further names in `tied`, and nothing else. Throws FormatError also if a tensor's two names
/// hold different values.
void check_weight_names(const files::TensorFiles& files, const model::Model& model, const TiedNames& tied = {});

/// The state dict of the module from which `model` was made, with the values in the files of a checkpoint: its
/// parameters (in bfloat16, if the training had them so) and persistent buffers, those in `tied` under each of their
/// names. Throws FormatError as check_names and load_state do, and naming a buffer of a type that checkpoints do not
/// store.
[[nodiscard]] files::NamedTensors state_dict(const files::TensorFiles& files, const model::Model& model,
                                             const TiedNames& tied);

}  // namespace stagecraft::checkpoint
