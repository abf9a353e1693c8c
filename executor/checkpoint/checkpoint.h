#pragma once

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

// A checkpoint is a folder DIR/step-N with manifest.json and one or more safetensors files. Tensors have their full
// names, so that any plan can load what another plan wrote, and each is one piece or several, a piece being a slice of
// the tensor that one rank has written to its file. The folder's name ends in ".partial" while it is written; the final
// rename makes the checkpoint exist.

namespace stagecraft::checkpoint {

/// A complete checkpoint.
struct FoundCheckpoint {
  std::string path;
  format::CheckpointManifest manifest;
};

/// DIR/step-N.
[[nodiscard]] std::string checkpoint_path(const std::string& folder, std::int64_t step);
/// DIR/step-N.partial: where the files of a checkpoint are written.
[[nodiscard]] std::string partial_path(const std::string& folder, std::int64_t step);
/// Steps of the checkpoints in `folder` that have a manifest, ascending, complete or not. None if the folder does not
/// exist. Throws FormatError if it cannot be read.
[[nodiscard]] std::vector<std::int64_t> checkpoint_steps(const std::string& folder);
/// The manifest of the checkpoint at `path` (DIR/step-N), whose files have the sizes and checksums that it lists.
/// Throws FormatError naming a mismatch.
[[nodiscard]] format::CheckpointManifest check_checkpoint(const std::string& path);
/// The checkpoint at `path`, which is DIR/step-N (also one that is not finite), or else the newest one in the folder
/// `path`, see latest_checkpoint. Throws FormatError if it is damaged, or if there is none.
[[nodiscard]] FoundCheckpoint checkpoint_at(const std::string& path,
                                            const std::function<void(const std::string&)>& tell);
/// The newest complete checkpoint with only finite values. `tell` is called for each newer one that is damaged (with
/// the reason) or not finite.
[[nodiscard]] std::optional<FoundCheckpoint> latest_checkpoint(const std::string& folder,
                                                               const std::function<void(const std::string&)>& tell);
/// Paths of the checkpoint's files.
[[nodiscard]] std::vector<std::string> file_paths(const FoundCheckpoint& checkpoint);
/// Steps up to `last` of the checkpoints in `folder` that are finite, by their manifests only, ascending.
[[nodiscard]] std::vector<std::int64_t> finite_checkpoints(const std::string& folder, std::int64_t last);

/// Creates the folder if it does not exist. Throws FormatError with the path and the system's reason if the folder is
/// not writable, std::invalid_argument if it has a checkpoint and `resume` is false.
void check_checkpoint_folder(const std::string& folder, bool resume);
/// Prepares a checkpoint after `step` steps: removes what crashes left in `folder` and creates the folder for the
/// checkpoint's files, whose path it returns. Call in one process only. Throws FormatError with the path and the
/// system's reason.
[[nodiscard]] std::string begin_checkpoint(const std::string& folder, std::int64_t step);
/// A part of a tensor to be written. `tensor` is the tensor's name, `shape` that of all of it.
struct StatePiece {
  std::string tensor;
  std::vector<std::int64_t> shape;
  TensorSlice part;
  at::Tensor values;
};
/// The name of the file that `rank` writes.
[[nodiscard]] std::string part_name(int rank);
/// Writes the file of `rank` into the folder `partial`. Throws as write_safetensors, and std::invalid_argument for two
/// pieces of one name.
format::CheckpointFile write_pieces(const std::string& partial, int rank, const std::vector<StatePiece>& pieces);
/// Makes the checkpoint exist, with the tensors in its files and its own checksum in the manifest, once all its files
/// are written, then removes all others but those of the steps in `keep`, their manifests first. Throws FormatError
/// with the path and the reason, if a file does not have the size in the manifest, and if the pieces are not each
/// tensor's elements once; older checkpoints are then kept.
void commit_checkpoint(const std::string& folder, const format::CheckpointManifest& manifest,
                       const std::vector<std::int64_t>& keep);

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
/// yet. Parameter i of `optimizer` is parameter i of `program`, or a vector of its values in the order of its memory,
/// at least those that are owned. Shares memory with both.
void collect_state(stage::StageProgram& program, const stage::Optimizer& optimizer, const OwnedRanges& owned,
                   std::vector<StatePiece>& out);
/// Sets all parameters and buffers, and the state of what the optimizer updates, from `files`. Parameters, moments and
/// averages may be in float32 or bfloat16, whichever the program and the optimizer have. A float32 parameter takes the
/// checkpoint's master value, and a float32 parameter of the checkpoint is the master value of one in bfloat16. Throws
/// FormatError naming file and tensor for one of another shape or dtype. What is absent is left as it is: see
/// check_names.
void load_state(const files::TensorFiles& files, stage::StageProgram& program, stage::Optimizer& optimizer);
/// Sets parameters, and the buffers present, from `files`. A floating-point tensor may have any floating dtype, others
/// must have the same dtype. Throws FormatError as load_state does.
void load_weights(const files::TensorFiles& files, stage::StageProgram& program);

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
