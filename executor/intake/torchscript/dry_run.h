#pragma once

#include <ATen/core/Generator.h>
#include <ATen/core/ivalue.h>
#include <ATen/core/stack.h>

#include <cstddef>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "executor/intake/graph/dry_sizes.h"
#include "executor/intake/graph/operator_graph.h"
#include "executor/intake/torchscript/script_value.h"
#include "executor/model/model.h"

namespace torch::jit {
struct Node;
}  // namespace torch::jit

namespace stagecraft::intake {

/// The operation of `node`; thread-safe.
[[nodiscard]] std::function<void(torch::jit::Stack&)> operation_of(torch::jit::Node* node);

/// The results of `run` for `arguments`, by result and dry run. Throws FormatError that begins with `where` if it fails
/// or the number of results is not `results`.
[[nodiscard]] std::vector<std::vector<c10::IValue>> dry_run(const DryRuns& runs,
                                                            const std::function<void(torch::jit::Stack&)>& run,
                                                            const std::vector<ScriptValue>& arguments,
                                                            std::size_t results, const std::string& where);

/// Whether the tensors of both have the same types, sizes and strides in each dry run.
[[nodiscard]] bool same_shape(const std::vector<c10::IValue>& a, const std::vector<c10::IValue>& b);

/// Input `model` in each dry run: random, seeded by `number`, the input's number.
[[nodiscard]] std::vector<at::Tensor> random_inputs(const DryRuns& runs, const model::ModelInput& model,
                                                    std::size_t number);

/// Restores the state of the CPU's default generator, from which dry runs draw, on destruction.
class KeepGenerator {
 public:
  KeepGenerator();
  ~KeepGenerator();
  KeepGenerator(const KeepGenerator&) = delete;
  KeepGenerator& operator=(const KeepGenerator&) = delete;

 private:
  at::Generator generator_;
  at::Tensor kept_;
};

/// The results of `node`, which calls operator `name`, if they are known before the model runs, from constants, the
/// batch size or the shapes in `graph`. Absent if it must run. `where` begins errors. Throws FormatError as dry_run
/// does.
[[nodiscard]] std::optional<std::vector<ScriptValue>> known_results(const OperatorGraph& graph, const DryRuns& runs,
                                                                    torch::jit::Node* node, const std::string& name,
                                                                    const std::vector<ScriptValue>& arguments,
                                                                    const std::string& where);

}  // namespace stagecraft::intake
