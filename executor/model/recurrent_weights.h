#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <span>

namespace stagecraft::model {

/// Which gates the weights of a recurrent layer have.
enum class RecurrentKind { Lstm, Gru };

/// The weights of a recurrent layer, in LibTorch's order, and what their number does not tell.
struct RecurrentWeights {
  RecurrentKind kind = RecurrentKind::Lstm;
  std::span<const at::Tensor> weights;  ///< per layer and direction: input, hidden, and both biases if it has them
  std::int64_t layers = 1;
  bool has_biases = true;
  bool bidirectional = false;
  bool batch_first = true;
};

/// On a GPU, moves the weights into one block of memory, as cuDNN wants them; otherwise LibTorch copies them there in
/// every call, and warns each time. The tensors keep their values. No effect on a CPU, on weights in one block already,
/// and on weights that cuDNN cannot use like this: of several types or devices, with projections, or not contiguous.
void gather_recurrent_weights(const RecurrentWeights& weights);

}  // namespace stagecraft::model
