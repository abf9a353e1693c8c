#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/Device.h>
#include <c10/core/Event.h>

#include <cstdint>
#include <map>
#include <memory>
#include <memory_resource>
#include <vector>

namespace stagecraft::stage {

/// By microbatch. Must not outlive its StepLosses, whose memory it uses.
using MicrobatchLosses = std::pmr::map<int, double>;

/// The losses of a rank's microbatches, step by step. On a GPU, they are copied to the host while the rank continues.
class StepLosses {
 public:
  explicit StepLosses(c10::Device device) : device_(device) {}

  /// A scalar of `step`, which has not ended.
  void add(std::int64_t step, int microbatch, const at::Tensor& loss);
  /// All losses of `step` have been added.
  void end_step(std::int64_t step);
  /// Takes those of a finished step, by microbatch; empty if another rank has the loss. On a GPU, waits until they are
  /// computed.
  [[nodiscard]] MicrobatchLosses take(std::int64_t step);

 private:
  struct Step {
    explicit Step(std::pmr::memory_resource* memory) : losses(memory) {}
    MicrobatchLosses losses;
    std::vector<int> microbatches;  ///< whose losses are on the GPU or being copied
    std::vector<at::Tensor> on_device;
    at::Tensor host;  ///< theirs once `come`
    std::unique_ptr<c10::Event> arrived;
  };
  c10::Device device_;
  [[nodiscard]] Step& of(std::int64_t step) { return steps_.try_emplace(step, &memory_).first->second; }
  std::pmr::unsynchronized_pool_resource memory_;  // a step reuses what an earlier one returned
  std::pmr::map<std::int64_t, Step> steps_{&memory_};
};

}  // namespace stagecraft::stage
