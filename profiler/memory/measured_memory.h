#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <span>
#include <vector>

#include "costmodel/graph.h"
#include "executor/device/memory_tracker.h"
#include "profiler/subject/subject.h"

namespace stagecraft::profiler {

/// Peak memory of one iteration, parameters, gradients, optimizer state and the batch included.
struct PeakBytes {
  Bytes summed;     ///< computed from the layers' bytes
  Bytes allocator;  ///< counted by the allocator
  friend bool operator==(const PeakBytes&, const PeakBytes&) = default;
};

/// Memory that libraries hold on a GPU between iterations, such as cuBLAS's workspaces: what LibTorch's allocator has
/// given out in this process beyond what the subject keeps and `batch`. Nothing else may hold tensors there. 0 on a
/// CPU.
[[nodiscard]] Bytes measured_library_bytes(Subject& subject, const std::vector<at::Tensor>& batch, c10::Device device);

/// Sets saved_bytes and workspace_bytes of each layer, and returns the most bytes that an iteration allocates on top of
/// what it starts with. growth[i] is what the forward of layer i left allocated, negative if it released more;
/// transient[i] is the most that layer i needed on top of that. What a layer releases beyond its own growth is
/// subtracted from the growth of the layers after it, so that no layer has negative saved_bytes. During the backward of
/// every layer except the last, the loss and its gradient, each as large as the last layer's output, stay allocated
/// too.
[[nodiscard]] Bytes fill_layer_bytes(std::span<Layer> layers, const std::vector<std::int64_t>& growth,
                                     const std::vector<std::int64_t>& transient);

/// Runs one iteration of `subject` over `batch`, sets saved_bytes, workspace_bytes and gradient_bytes of each layer,
/// and returns the peaks. `layers` are the layers of the subject's graph without its inputs; gradients and optimizer
/// state must exist already, and `memory` must be counting on this thread. Then sets saved_for_backward_bytes and
/// Output::saved from one more forward, and takes the allocator's peak from one more iteration. If `briefly`, these two
/// are left out, and the peak is that of the first iteration.
[[nodiscard]] PeakBytes measure_memory(std::span<Layer> layers, Subject& subject, const std::vector<at::Tensor>& batch,
                                       device::MemoryTracker& memory, c10::Device device, bool briefly);

/// What does not need an allocator to be watched: gradients, and what autograd keeps from forward to backward, which
/// also becomes saved_bytes. Gradients must exist.
void count_kept_bytes(std::span<Layer> layers, Subject& subject, const std::vector<at::Tensor>& batch);

}  // namespace stagecraft::profiler
