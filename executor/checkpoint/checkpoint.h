#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "costmodel/format/checkpoint_manifest.h"
#include "executor/files/safetensors.h"
#include "executor/files/tensor_files.h"
#include "executor/model/model.h"
#include "executor/stage/optimizer.h"
#include "executor/stage/stage_program.h"

// A checkpoint is a folder DIR/step-N with manifest.json and one or more safetensors files. Its tensors stand under
// their full names, so that any plan loads what any other wrote. While it is written the folder's name ends in
// ".partial"; the rename that ends this is what makes it exist.

namespace stagecraft {

/// A checkpoint that was found whole.
struct FoundCheckpoint {
  std::string path;
  CheckpointManifest manifest;
};

/// DIR/step-N.
[[nodiscard]] std::string checkpoint_path(const std::string& folder, std::int64_t step);
/// DIR/step-N.partial: where the files of a checkpoint are written.
[[nodiscard]] std::string partial_path(const std::string& folder, std::int64_t step);
/// Steps of the checkpoints in `folder` that have a manifest, ascending; whether they are whole is not looked at. None
/// if there is no such folder. Throws FormatError if it cannot be read.
[[nodiscard]] std::vector<std::int64_t> checkpoint_steps(const std::string& folder);
/// The manifest of the checkpoint at `path` (DIR/step-N), whose files are there with the bytes and checksums that it
/// says. Throws FormatError naming what is not.
[[nodiscard]] CheckpointManifest check_checkpoint(const std::string& path);
/// The newest whole checkpoint whose values are finite. `tell` hears of each newer one that is damaged, and why, or
/// that is not finite.
[[nodiscard]] std::optional<FoundCheckpoint> latest_checkpoint(const std::string& folder,
                                                               const std::function<void(const std::string&)>& tell);
/// Steps up to `last` of the checkpoints in `folder` that are finite, by their manifests alone, ascending.
[[nodiscard]] std::vector<std::int64_t> finite_checkpoints(const std::string& folder, std::int64_t last);

/// Makes the folder if it is not there. Throws FormatError with the path and the system's reason if nothing can be
/// written in it, std::invalid_argument if it holds a checkpoint and `resume` is false.
void check_checkpoint_folder(const std::string& folder, bool resume);
/// Makes room for a checkpoint after `step` steps: removes what crashes left in `folder` and makes the folder in
/// which the checkpoint's files are to be written, whose path it gives. To be called by one process. Throws FormatError
/// with the path and the system's reason.
[[nodiscard]] std::string begin_checkpoint(const std::string& folder, std::int64_t step);
/// Makes the checkpoint exist, with the manifest's own checksum set, once all its files are written, then removes all
/// others but those of the steps in `keep`, their manifests first. Throws FormatError with the path and the reason, and
/// if a file is not there with the bytes that the manifest says; older checkpoints then stand.
void commit_checkpoint(const std::string& folder, const CheckpointManifest& manifest,
                       const std::vector<std::int64_t>& keep);

/// Throws std::invalid_argument naming layer and buffer if `model` has one that changes in training and is of a type
/// that no checkpoint holds. Others of such types are left out of checkpoints: they are as the model has them.
void check_can_save(const Model& model);

/// Adds to `out` what a checkpoint holds of the stage for the parameters and buffers that `wanted` names: values, and
/// the optimizer's state as optimizer.first/NAME (momentum or first moment), optimizer.second/NAME and
/// optimizer.steps/NAME, none for a parameter that had no gradient yet. Parameter i of `program` is parameter i of
/// `optimizer`. Shares memory with both.
void collect_state(StageProgram& program, const Optimizer& optimizer,
                   const std::function<bool(const std::string&)>& wanted, NamedTensors& out);
/// Sets all that collect_state gives from `files`. Throws FormatError naming file and tensor for one of another shape
/// or dtype. What is absent is left as it is: see check_names.
void load_state(const TensorFiles& files, StageProgram& program, Optimizer& optimizer);
/// Sets parameters, and the buffers that are there, from `files`; any floating dtype will do for a floating one, else
/// the dtype must be the same. Throws FormatError as load_state.
void load_weights(const TensorFiles& files, StageProgram& program);

/// Throws FormatError naming the tensors that `model` under `optimizer` does not know (listing those it does), and
/// those that are missing: parameters, buffers, or a part of a parameter's state. All of a parameter's state may be
/// absent.
void check_names(const TensorFiles& files, const Model& model, const OptimizerOptions& optimizer);
/// The same for a file of weights: parameters must be there, buffers may, and batch norm's num_batches_tracked whether
/// the model has them or not; else nothing.
void check_weight_names(const TensorFiles& files, const Model& model);

}  // namespace stagecraft
