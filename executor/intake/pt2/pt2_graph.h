#pragma once

#include <map>
#include <string>

#include "executor/intake/graph/layers/layer_source.h"
#include "executor/intake/graph/operator_graph.h"
#include "executor/intake/pt2/pt2_archive.h"

namespace stagecraft::intake {

/// The tensor that `archive` stores: a private mapping of its bytes, which may be trained in place; each call makes a
/// new one. Throws FormatError, with file and record, if the CRC is wrong, InputError if it has no values.
[[nodiscard]] at::Tensor load_tensor(const files::ZipArchive& archive, const StoredTensor& stored);

/// The graph of an archive. Tied parameters have the name that comes first among the graph's inputs. The batch axis of
/// an input is the axis with the only symbol, or that of the notes.
/// Throws FormatError with file, node, module path and reason for what cannot be run: see make_call; a trainable
/// parameter that is not float32; two symbols, or a size that is not just the symbol; inputs that are not tensors.
/// Throws std::invalid_argument for a range of an unknown input, and for one that exceeds the rows of an embedding or
/// the classes of a loss that reads the input, naming that node.
/// `ranges` gives the smallest value and one past the largest of integer inputs; it overrides the notes and what
/// follows from an embedding or a cross entropy that reads them.
/// For evaluation, the nodes are those of evaluating(archive's program); values and nodes have the same numbers in both
/// modes.
[[nodiscard]] OperatorGraph pt2_graph(const Pt2Archive& archive,
                                      const std::map<std::string, std::pair<std::int64_t, std::int64_t>>& ranges = {},
                                      model::ModelMode mode = model::ModelMode::Training);

/// Archives that torch.export.save wrote, see pt2_graph. They do not take the settings `samples` and `input.NAME`.
[[nodiscard]] LayerSource pt2_source();

}  // namespace stagecraft::intake
