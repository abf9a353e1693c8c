#pragma once

#include <ATen/core/Tensor.h>

#include <memory>
#include <utility>
#include <vector>

namespace stagecraft::stage {

/// A backward in two parts, so that the gradients for which others wait come first: those of the inputs, then those of
/// the weights. Together they do the work of one backward, with the same bits. The backward of a weight that the graph
/// uses more than once (tied or recurrent) cannot be split; all of it then runs in the first part.
class SplitBackward {
 public:
  /// The gradients of `inputs` (leaves), undefined where the graph does not use one, and the remaining work for the
  /// weights. `roots` and `gradients` as for torch::autograd::backward: an undefined gradient means 1.
  [[nodiscard]] static std::pair<std::vector<at::Tensor>, SplitBackward> of_inputs(
      const std::vector<at::Tensor>& roots, const std::vector<at::Tensor>& gradients,
      const std::vector<at::Tensor>& inputs);

  SplitBackward();
  ~SplitBackward();
  SplitBackward(SplitBackward&&) noexcept;
  SplitBackward& operator=(SplitBackward&&) noexcept;

  /// Whether of_inputs separated the parts; false after of_weights.
  [[nodiscard]] bool is_split() const { return rest_ != nullptr; }
  /// Takes over the rest of a later backward, of the layers before it.
  void before(SplitBackward earlier);
  /// Adds to the weights' gradients and releases the graph. No effect the second time.
  void of_weights();

 private:
  struct Rest;
  std::unique_ptr<Rest> rest_;
};

}  // namespace stagecraft::stage
