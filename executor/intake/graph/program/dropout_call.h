#pragma once

#include <cstdint>
#include <functional>
#include <string>

#include "executor/intake/graph/calls/operator_facts.h"
#include "executor/intake/graph/operator_graph.h"
#include "executor/intake/graph/program/program_graph.h"

namespace stagecraft::intake {

/// Dropout whose masks do not come from the device's default generator: they follow from the run's seed, step and
/// microbatch, the name of a block and of a stream in it, and the place among the masks of that stream, so that they
/// are the same wherever the model is cut. The operator is stagecraft::dropout(Tensor input, float p, bool train, str
/// block, str stream, int place); each block has a stream "".
struct DropoutArguments {
  ValueIndex input;
  double probability = 0;
  bool train = false;
  std::string block;
  std::string stream;
  std::int64_t place = 0;

  /// Whether a value may be dropped. Otherwise the result is the input itself, and no mask is drawn.
  [[nodiscard]] bool active() const { return train && probability > 0; }
};

[[nodiscard]] bool is_dropout(const ProgramNode& node);

/// The node of `arguments` that gives `result`; `name` and modules are empty.
[[nodiscard]] ProgramNode dropout_node(const DropoutArguments& arguments, ValueIndex result);

/// The arguments of such a node. Throws FormatError that begins with `place` for others.
[[nodiscard]] DropoutArguments dropout_arguments(const ProgramGraph& graph, const ProgramNode& node,
                                                 const std::string& place);

/// facts_of and make_call for such a node. A mask is drawn after those of the nodes of `graph` with the same block and
/// stream and a lower place: if a run lacks these, it draws their masks first and forgets them.
[[nodiscard]] NodeFacts dropout_facts(const ProgramGraph& graph, const ProgramNode& node, const std::string& place);
[[nodiscard]] NodeCall dropout_call(const ProgramGraph& graph, const ProgramNode& node, const std::string& place,
                                    const std::function<int(int)>& slot);

}  // namespace stagecraft::intake
