#pragma once

#include <c10/core/StorageImpl.h>

#include <unordered_map>
#include <unordered_set>
#include <vector>

#include "costmodel/units.h"
#include "executor/stage/stage_program.h"

namespace stagecraft {

/// Memory that autograd keeps from forward to backward, counted once however many nodes save it.
struct SavedStorage {
  Bytes bytes;                 ///< of the whole storage, of which a saved tensor may be a part
  int layer = 0;               ///< the first that saved it, which pays for it
  std::vector<int> co_savers;  ///< the others, in order, each once
  friend bool operator==(const SavedStorage&, const SavedStorage&) = default;
};

/// Counts what the layers' forwards save for backward, as observer of a StageProgram's forward. Counted by storage, so
/// that views and several savers of one tensor count once; parameters do not count, views of them neither; buffers (a
/// batch norm's running statistics) do. What a layer's nodes saved counts even if the layer let go of them. What runs
/// outside of the layers and on other threads is not seen. The backward may run afterwards and gives the same bits, yet
/// LibTorch does not notice if a saved tensor is changed in place meanwhile, and saving costs time: measure no times
/// together with this.
/// While one lives, LibTorch's default engine is one of ours; the base engine's place is taken back by the last. Not to
/// be used where Python has set an engine of its own.
class SavedBytes : public LayerObserver {
 public:
  /// `layers` is the number of layers; `parameters` must outlive it.
  SavedBytes(std::size_t layers, const std::vector<Parameter>& parameters);
  ~SavedBytes() override;
  SavedBytes(const SavedBytes&) = delete;
  SavedBytes& operator=(const SavedBytes&) = delete;

  void begin(int layer) override;
  void end(int layer) override;
  /// Forgets the last forward.
  void reset();

  /// What each layer pays for.
  [[nodiscard]] std::vector<Bytes> by_layer() const;
  /// In the order of first saving.
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
  int current_ = -1;
};

}  // namespace stagecraft
