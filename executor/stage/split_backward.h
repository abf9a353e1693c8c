#pragma once

#include <ATen/core/Tensor.h>

#include <memory>
#include <utility>
#include <vector>

namespace stagecraft {

/// A backward in two parts, so that the gradients that others wait for come first: those of the inputs, then those of
/// the weights. Together they do the work of one backward, with the same bits. A weight that the graph uses more than
/// once (a tied one, a recurrent layer's) cannot be parted; then all of it happens in the first part.
class SplitBackward {
 public:
  /// The gradients of `inputs` (leaves), undefined where the graph does not use one, and what is left to be done for
  /// the weights. `roots` and `gradients` as torch::autograd::backward takes them: an undefined gradient stands for 1.
  [[nodiscard]] static std::pair<std::vector<at::Tensor>, SplitBackward> of_inputs(
      const std::vector<at::Tensor>& roots, const std::vector<at::Tensor>& gradients,
      const std::vector<at::Tensor>& inputs);

  SplitBackward();
  ~SplitBackward();
  SplitBackward(SplitBackward&&) noexcept;
  SplitBackward& operator=(SplitBackward&&) noexcept;

  /// Takes over what is left of a backward that came after this one, of the layers before it.
  void before(SplitBackward earlier);
  /// Adds to the weights' grad and lets the graph go. Nothing the second time.
  void of_weights();

 private:
  struct Rest;
  std::unique_ptr<Rest> rest_;
};

}  // namespace stagecraft
