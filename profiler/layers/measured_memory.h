#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/StorageImpl.h>

#include <algorithm>
#include <cstdint>
#include <span>
#include <unordered_map>
#include <unordered_set>
#include <vector>

#include "costmodel/graph.h"
#include "costmodel/units.h"
#include "executor/device/memory_tracker.h"
#include "executor/stage/stage_program.h"
#include "profiler/subject/backward_watcher.h"
#include "profiler/subject/subject.h"

namespace stagecraft::profiler {

/// Memory that autograd keeps from forward to backward, counted once no matter how many nodes save it.
struct SavedStorage {
  Bytes bytes;                 ///< of the whole storage; a saved tensor may be a part of it
  int layer = 0;               ///< the first layer that saved it, for which it counts
  std::vector<int> co_savers;  ///< other layers that saved it, in order, each once
  friend bool operator==(const SavedStorage&, const SavedStorage&) = default;
};

/// Counts the bytes that each layer's forward saves for backward, as observer of a StageProgram's forward. It counts
/// storages, so that a tensor counts once even if it has several views or savers. Parameters and views of them do not
/// count; buffers, such as a batch norm's running statistics, do. What a node saved counts even if the layer has
/// already released the node. Work outside the layers and on other threads is not seen. The backward may run afterwards
/// and gives the same bits, but LibTorch does not notice if a saved tensor is changed in place in between. Saving is
/// slower than usual, so do not measure times together with this. While any SavedBytes exists, it replaces LibTorch's
/// default engine; the last one restores the base engine. Must not be used if Python has set its own engine.
class SavedBytes : public stage::LayerObserver {
 public:
  /// `layers` is the number of layers; `parameters` must outlive it.
  SavedBytes(std::size_t layers, const std::vector<stage::Parameter>& parameters);
  ~SavedBytes() override;
  SavedBytes(const SavedBytes&) = delete;
  SavedBytes& operator=(const SavedBytes&) = delete;

  void begin(int layer) override;
  void made(int layer, std::span<const at::Tensor> outputs) override;
  void end(int layer) override;
  /// Forgets everything counted so far.
  void reset();

  /// Bytes that count for each layer.
  [[nodiscard]] std::vector<Bytes> by_layer() const;
  /// For each layer and output, whether a layer saved its storage.
  [[nodiscard]] std::vector<std::vector<bool>> saved_outputs() const;
  /// All storages, in the order in which they were first saved.
  [[nodiscard]] const std::vector<SavedStorage>& storages() const { return storages_; }

 private:
  struct Hook;
  class CountingEngine;
  void account(const at::Tensor& tensor);

  std::size_t layers_;
  std::unordered_set<const c10::StorageImpl*> parameters_;
  std::unordered_map<const c10::StorageImpl*, std::size_t> places_;
  /// Holds the addresses, so that no later storage takes one, not the memory.
  std::vector<c10::weak_intrusive_ptr<c10::StorageImpl>> seen_;
  std::vector<SavedStorage> storages_;
  std::vector<std::vector<c10::weak_intrusive_ptr<c10::StorageImpl>>> outputs_;  // by layer
  int current_ = -1;
};

/// Bytes that each layer allocates and releases in one iteration, by a tracker that counts on this thread.
class LayerMemory : public stage::LayerObserver {
 public:
  LayerMemory(std::size_t layers, const std::vector<stage::Parameter>& parameters, device::MemoryTracker& tracker);
  void begin(int layer) override;
  void end(int layer) override;
  /// Must be called right before and right after the backward.
  void begin_backward();
  void end_backward();

  /// Bytes that each layer's forward left allocated; negative if it released more than it allocated.
  [[nodiscard]] const std::vector<std::int64_t>& growth() const { return growth_; }
  /// Largest number of bytes allocated at the same time. The tracker's own peak is reset with each layer.
  [[nodiscard]] std::int64_t peak() const { return std::max(peak_, tracker_.peak().value); }
  /// The most bytes that each layer needed temporarily, in forward or backward, beyond what was allocated before or
  /// after.
  [[nodiscard]] const std::vector<std::int64_t>& transient() const { return transient_; }

 private:
  void switch_to(int layer);
  void begin_peak();

  device::MemoryTracker& tracker_;
  std::vector<std::int64_t> growth_;
  std::vector<std::int64_t> transient_;
  BackwardWatcher watcher_;
  int current_ = -1;
  std::int64_t live_ = 0;
  std::int64_t peak_ = 0;
};

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
