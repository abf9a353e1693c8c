#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>
#include <vector>

#include "costmodel/gradient_sums.h"
#include "executor/channel/channel.h"

namespace stagecraft::stage {

/// What all ranks of a sum own of tensors like its parameters, gathered by all of them.
class PartGather {
 public:
  /// `all`: an all-gather of the tensors, one after the other in the order of their memory: its `values` are memory for
  /// them, and its `counts` what each member owns. `rank` is a member. `own`: memory of its own that has what `rank`
  /// owns of each of the tensors, which then need not have it; none: the tensors have it.
  PartGather(channel::CollectiveCall all, int rank, const std::vector<at::Tensor>& tensors,
             const std::vector<at::Tensor>& own = {});
  /// Sends what `rank` owns of the tensors.
  void start(channel::Channel& channel);
  /// Once, after start: returns when the tensors have what the other members own, as CollectiveInProgress::wait does.
  void finish();

 private:
  /// The same values in the tensors and in the all-gather.
  struct CopiedValues {
    std::vector<at::Tensor> tensors;
    std::vector<at::Tensor> gathered;
  };
  channel::CollectiveCall all_;
  CopiedValues own_;
  CopiedValues others_;
  std::unique_ptr<channel::CollectiveInProgress> running_;
};

}  // namespace stagecraft::stage
