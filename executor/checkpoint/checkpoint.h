#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "costmodel/format/checkpoint_manifest.h"
#include "executor/checkpoint/state.h"

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

}  // namespace stagecraft::checkpoint
