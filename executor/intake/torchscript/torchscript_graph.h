#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <utility>

#include "executor/files/zip_archive.h"
#include "executor/intake/graph/layers/layer_source.h"
#include "executor/intake/graph/operator_graph.h"
#include "executor/model/model.h"

namespace stagecraft::intake {

/// Reads the description of one sample of input `name`: "float32[3,224,224]", "int64[]"; then ":batch_axis=1" if the
/// batch axis is not the first, ":batch_axis=none" if one tensor serves all samples. Throws std::invalid_argument with
/// the text and the expected form.
[[nodiscard]] model::ModelInput parse_model_input(const std::string& name, const std::string& text);

/// What a TorchScript file does not contain.
struct TorchScriptInputs {
  std::map<std::string, std::string> inputs;  ///< by argument of forward, as parse_model_input reads them
  std::map<std::string, std::pair<std::int64_t, std::int64_t>> ranges;  ///< of integer inputs: [first, second)
  std::optional<std::int64_t> samples;                                  ///< the only batch size that the model accepts
};

/// The graph of a model that torch.jit.trace or torch.jit.script made: forward with all calls inlined, each node under
/// the module that calls it. What follows from constants and from the training flag is resolved here: branches, loops
/// with a known number of iterations, assertions that hold. A branch or loop that depends on data or on the batch is
/// one node. The model runs here four times, on random inputs of 2, 3, 5 and again 3 samples (or twice with `samples`),
/// to find shapes as a * batch + c and which values share memory. No pass changes the arithmetic.
///
/// Throws FormatError with file, operator and module for what cannot run in stages: attributes that forward changes,
/// objects that are not modules, lists that a branch or loop changes, a model that fails in the dry runs (with the
/// first line of the reason), and what load_torchscript refuses. Throws std::invalid_argument listing forward's
/// arguments if `declared` does not match them.
///
/// For evaluation, every module's attribute `training` is false, and training arguments in a trace are set by
/// evaluation_value.
[[nodiscard]] OperatorGraph torchscript_graph(const files::ZipArchive& archive, const TorchScriptInputs& declared,
                                              model::ModelMode mode = model::ModelMode::Training);

/// Archives that torch.jit.save wrote, see torchscript_graph. The settings describe their inputs.
[[nodiscard]] LayerSource torchscript_source();

}  // namespace stagecraft::intake
