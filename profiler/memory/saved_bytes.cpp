#include "profiler/memory/saved_bytes.h"

#include <ATen/ops/detach.h>
#include <torch/csrc/autograd/engine.h>
#include <torch/csrc/autograd/saved_variable_hooks.h>

#include <algorithm>
#include <memory>
#include <mutex>

#include "costmodel/index.h"

namespace stagecraft::profiler {
namespace {

using torch::autograd::Engine;
using torch::autograd::SavedVariableHooks;

/// The engine is asked without a context, so the counter of this thread is kept here.
thread_local SavedBytes* active = nullptr;

std::mutex users_mutex;
int users = 0;

}  // namespace

struct SavedBytes::Hook : SavedVariableHooks {
  void call_pack_hook(const at::Tensor& tensor) override {
    // Detached, because a node that saves its own output would else keep itself alive.
    kept = tensor.detach();
    if (active) active->account(tensor);
  }
  at::Tensor call_unpack_hook() override { return kept; }
  at::Tensor kept;
};

class SavedBytes::CountingEngine : public Engine {
 public:
  ~CountingEngine() override { stop(); }
  std::unique_ptr<SavedVariableHooks> get_default_saved_variable_hooks() override {
    return active ? std::make_unique<Hook>() : nullptr;
  }
  static Engine& get() {
    static CountingEngine engine;
    return engine;
  }
};

SavedBytes::SavedBytes(std::size_t layers, const std::vector<stage::Parameter>& parameters)
    : layers_(layers), outputs_(layers) {
  for (const stage::Parameter& parameter : parameters)
    parameters_.insert(parameter.value.storage().unsafeGetStorageImpl());
  const std::lock_guard lock(users_mutex);
  if (users++ == 0) torch::autograd::set_default_engine_stub(&CountingEngine::get);
}

SavedBytes::~SavedBytes() {
  if (active == this) active = nullptr;
  const std::lock_guard lock(users_mutex);
  if (--users == 0) torch::autograd::set_default_engine_stub(&Engine::get_base_engine);
}

void SavedBytes::begin(int layer) {
  current_ = layer;
  active = this;
}

void SavedBytes::made(int layer, std::span<const at::Tensor> outputs) {
  auto& storages = outputs_[to_index(layer)];
  storages.clear();
  using Storage = c10::intrusive_ptr<c10::StorageImpl>;
  for (const at::Tensor& output : outputs) {
    storages.emplace_back(output.has_storage() ? Storage::reclaim_copy(output.storage().unsafeGetStorageImpl())
                                               : Storage());
  }
}

void SavedBytes::end(int) { active = nullptr; }

void SavedBytes::reset() {
  places_.clear();
  seen_.clear();
  storages_.clear();
  outputs_.assign(layers_, {});
}

void SavedBytes::account(const at::Tensor& tensor) {
  if (!tensor.has_storage()) return;
  c10::StorageImpl* storage = tensor.storage().unsafeGetStorageImpl();
  if (parameters_.contains(storage)) return;
  const auto [it, fresh] = places_.emplace(storage, storages_.size());
  if (fresh) {
    seen_.emplace_back(c10::intrusive_ptr<c10::StorageImpl>::reclaim_copy(storage));
    storages_.push_back({Bytes(static_cast<std::int64_t>(storage->nbytes())), current_, {}});
    return;
  }
  SavedStorage& known = storages_[it->second];
  const auto& others = known.co_savers;
  if (known.layer != current_ && std::find(others.begin(), others.end(), current_) == others.end())
    known.co_savers.push_back(current_);
}

std::vector<Bytes> SavedBytes::by_layer() const {
  std::vector<Bytes> out(layers_);
  for (const SavedStorage& storage : storages_) out[to_index(storage.layer)] += storage.bytes;
  return out;
}

std::vector<std::vector<bool>> SavedBytes::saved_outputs() const {
  std::vector<std::vector<bool>> out(layers_);
  for (std::size_t i = 0; i < layers_; ++i) {
    for (const auto& output : outputs_[i]) out[i].push_back(places_.contains(output._unsafe_get_target()));
  }
  return out;
}

}  // namespace stagecraft::profiler
