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
#include "executor/model/model.h"

namespace stagecraft::intake {

/// What `stagecraft export-model` adds about a model input in extra/stagecraft.json.
struct ExportedInput {
  std::string name;
  std::optional<int> batch_axis;
  std::optional<std::pair<std::int64_t, std::int64_t>> range;  ///< of integers: from, to (excluded)
};

/// What it adds about a loss that is a weighted mean, see LossTerms; values by their names in the program.
struct ExportedWeight {
  std::string count;
  std::optional<std::int64_t> ignored;
  std::string class_weights;  ///< empty: none
  double least = 0;
  double added = 0;
  std::string labels;  ///< the input whose ignored labels alone make microbatches differ; empty: none
};

struct ExportNotes {
  std::string batch_symbol;  ///< empty: exported for one batch size
  std::vector<ExportedInput> inputs;
  std::optional<std::pair<std::int64_t, std::int64_t>> samples;  ///< smallest and largest microbatch
  std::optional<int> loss_output;                                ///< index of the model's output that is the loss
  std::vector<std::vector<std::string>> tied;
  bool training = true;  ///< exported in training mode
  /// Whether the training program with dropout off and running statistics is the model in evaluation mode.
  bool evaluates = true;
  std::vector<std::string> output_keys;  ///< of a model without a loss that returns a dictionary
  std::optional<int> scores_output;      ///< the one of them that a named loss reads
  model::LossKind loss_kind = model::LossKind::Mean;
  std::optional<ExportedWeight> loss_weight;
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
