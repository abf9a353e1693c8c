#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "executor/files/zip_archive.h"
#include "executor/intake/pt2/exported_program.h"

namespace stagecraft::intake {

/// What `stagecraft export-model` adds about a model input in extra/stagecraft.json.
struct ExportedInput {
  std::string name;
  std::optional<int> batch_axis;
  std::optional<std::pair<std::int64_t, std::int64_t>> range;  ///< of integers: from, to (excluded)
};

struct ExportNotes {
  std::string batch_symbol;  ///< empty: exported for one batch size
  std::vector<ExportedInput> inputs;
  std::optional<std::pair<std::int64_t, std::int64_t>> samples;  ///< smallest and largest microbatch
  std::optional<int> loss_output;                                ///< index of the model's output that is the loss
  std::vector<std::vector<std::string>> tied;
  bool training = true;  ///< exported in training mode
};

/// An archive that torch.export.save wrote, read and checked, without executing or unpickling anything.
struct Pt2Archive {
  std::shared_ptr<const files::ZipArchive> zip;
  std::string root;   ///< folder that holds all records
  std::string model;  ///< its only model
  ExportedProgram program;
  /// Parameters, buffers and constants by their names in ProgramInput.
  std::map<std::string, StoredTensor> tensors;
  std::optional<ExportNotes> notes;
};

/// Reads directory, program, configurations and notes, not the weights. Throws FormatError with the file, the node (if
/// any), its module path and the JSON pointer, what was found and what was expected; see pt2_archive.cpp.
[[nodiscard]] Pt2Archive read_pt2_archive(const std::string& path);

/// Reads the JSON of a program, blocks flattened (flattened_blocks.h): `place` begins every error ("model.pt2:
/// models/model.json").
[[nodiscard]] ExportedProgram read_exported_program(const std::string& json, const std::string& place);

}  // namespace stagecraft::intake
