#include "executor/model/recurrent_weights.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/_cudnn_rnn_flatten_weight.h>

#include <algorithm>

#include "costmodel/index.h"

namespace stagecraft::model {

void gather_recurrent_weights(const RecurrentWeights& weights) {
  const std::span<const at::Tensor> all = weights.weights;
  if (all.empty() || !all.front().is_cuda()) return;
  const std::int64_t of_one = weights.has_biases ? 4 : 2;
  const std::int64_t expected = of_one * weights.layers * (weights.bidirectional ? 2 : 1);
  const at::Tensor& first = all.front();
  const bool fit =
      to_int(all.size()) == expected && std::ranges::all_of(all, [&](const at::Tensor& weight) {
        return weight.device() == first.device() && weight.dtype() == first.dtype() && weight.is_contiguous();
      });
  if (!fit || !first.is_floating_point()) return;
  if (std::ranges::all_of(all, [&](const at::Tensor& weight) { return weight.is_alias_of(first); })) return;
  constexpr std::int64_t kLstm = 2;  // of cudnnRNNMode_t
  constexpr std::int64_t kGru = 3;
  const at::NoGradGuard no_grad;
  (void)at::_cudnn_rnn_flatten_weight(all, of_one, first.size(1), weights.kind == RecurrentKind::Lstm ? kLstm : kGru,
                                      all[1].size(1), /*proj_size=*/0, weights.layers, weights.batch_first,
                                      weights.bidirectional);
}

}  // namespace stagecraft::model
