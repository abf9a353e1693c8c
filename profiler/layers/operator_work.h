#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "costmodel/graph.h"
#include "costmodel/units.h"

namespace stagecraft::profiler {

/// A tensor as an operator reads or writes it. `bytes` counts memory, so that an expanded tensor counts once.
struct CountedTensor {
  std::vector<std::int64_t> shape;
  Bytes bytes;
  bool floating = true;
  [[nodiscard]] std::int64_t values() const;
};

/// An argument: the tensors of a tensor or a list of them, undefined ones left out, or one or more integers.
struct CountedArgument {
  std::vector<CountedTensor> tensors;
  std::vector<std::int64_t> integers;
};

/// One call of an operator. `results` has an empty entry for each undefined result.
struct OperatorCall {
  std::string name;  ///< without overload: "aten::addmm"
  std::vector<CountedArgument> arguments;
  std::vector<CountedArgument> results;
};

/// Whether the work of an operator follows from its own shapes, so that the operators it calls are not looked at.
[[nodiscard]] bool has_formula(const std::string& name);

/// Whether an operator only allocates, or gives another view of a tensor although its schema does not say so.
[[nodiscard]] bool moves_nothing(const std::string& name);

/// The work of one call. Matrix products, convolutions and attention are counted as torch.utils.flop_counter does:
/// m*n*k multiply-adds, a bias not; causal attention in full; the backward of fused attention computes the scores
/// again. Batch, layer and group norm take 7 operations per value forward (mean 1, variance 3, scaling 1, weight and
/// bias 2) and 13 backward (normalised value 2, its gradient 1, two sums 3, result 4, gradients of weight and bias 3);
/// softmax 5 (maximum, difference, exponential, sum, quotient) and 4; reductions 1 per value read; pooling 1 per value
/// of a window; recurrent layers the products of their weights. An operator without a formula takes 1 per value of its
/// floating-point results, whichever function it computes. Copies, fills, look-ups and comparisons take none. Bytes:
/// inputs and results once each, which assumes that a cache keeps what one operator reads twice and nothing between
/// operators; a look-up reads the rows that it returns.
[[nodiscard]] Work work_of(const OperatorCall& call);

}  // namespace stagecraft::profiler
