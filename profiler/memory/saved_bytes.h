#pragma once

#include <c10/core/StorageImpl.h>

#include <span>
#include <unordered_map>
#include <unordered_set>
#include <vector>

#include "costmodel/units.h"
#include "executor/stage/stage_program.h"

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

}  // namespace stagecraft::profiler
