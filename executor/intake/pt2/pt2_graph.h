#pragma once

#include <map>
#include <string>

#include "executor/intake/graph/operator_graph.h"
#include "executor/intake/pt2/pt2_archive.h"

namespace stagecraft {

/// The tensor that `archive` stores: a private mapping of its bytes, which may be trained in place; each call makes a
/// fresh one. Throws FormatError, with file and record, if the bytes have another CRC.
[[nodiscard]] at::Tensor load_tensor(const ZipArchive& archive, const StoredTensor& stored);

/// The graph of an archive. Tied parameters have the name that comes first among the graph's inputs. Inputs have the
/// batch axis that carries the only symbol, or what the notes say.
/// Throws FormatError with file, node, module path and reason for what cannot be run: see make_call; a trainable
/// parameter that is not float32; two symbols, or one in another axis than a whole one; inputs that are not tensors;
/// and std::invalid_argument for ranges of inputs that are not there, and for one that reaches beyond the rows of an
/// embedding or the classes of a loss that reads the input, naming that node.
/// `ranges` gives least value and the one past the largest of whole-number inputs, over what the notes say and what
/// follows from an embedding or a cross entropy that reads them.
/// For evaluation the nodes are evaluating(archive's program); values and nodes have the same numbers in both modes.
[[nodiscard]] OperatorGraph pt2_graph(const Pt2Archive& archive,
                                      const std::map<std::string, std::pair<std::int64_t, std::int64_t>>& ranges = {},
                                      ModelMode mode = ModelMode::Training);

}  // namespace stagecraft
