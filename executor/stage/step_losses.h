#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/Device.h>
#include <c10/core/Event.h>

#include <cstdint>
#include <map>
#include <memory>
#include <memory_resource>
#include <vector>

namespace stagecraft {

/// By microbatch. Must not outlive the StepLosses that it comes from, whose memory it uses.
using MicrobatchLosses = std::pmr::map<int, double>;

/// The losses of a rank's microbatches, step by step. On a GPU they come to the host while the rank goes on.
class StepLosses {
 public:
  explicit StepLosses(c10::Device device) : device_(device) {}

  /// A scalar of `step`, which has not ended.
  void add(std::int64_t step, int microbatch, const at::Tensor& loss);
  /// All losses of `step` are there.
  void end_step(std::int64_t step);
  /// Takes those of a step that has ended, by microbatch; none if another rank has the loss. On a GPU waits until it
  /// has computed them.
  [[nodiscard]] MicrobatchLosses take(std::int64_t step);

 private:
  struct Step {
    explicit Step(std::pmr::memory_resource* memory) : losses(memory) {}
    MicrobatchLosses losses;
    std::vector<int> microbatches;  ///< whose losses are on the GPU, or on their way
    std::vector<at::Tensor> on_device;
    at::Tensor host;  ///< theirs once `come`
    std::unique_ptr<c10::Event> come;
  };
  c10::Device device_;
  [[nodiscard]] Step& of(std::int64_t step) { return steps_.try_emplace(step, &memory_).first->second; }
  std::pmr::unsynchronized_pool_resource memory_;  // a step takes what an earlier one gave back
  std::pmr::map<std::int64_t, Step> steps_{&memory_};
};

}  // namespace stagecraft
