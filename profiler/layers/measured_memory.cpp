#include "profiler/layers/measured_memory.h"

#include <ATen/DeviceAccelerator.h>
#include <ATen/ops/detach.h>
#include <torch/csrc/autograd/engine.h>
#include <torch/csrc/autograd/saved_variable_hooks.h>

#include <algorithm>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <utility>

#include "costmodel/index.h"
#include "executor/device/device.h"

namespace stagecraft::profiler {
namespace {

using torch::autograd::Engine;
using torch::autograd::SavedVariableHooks;

/// The engine is asked without a context, so the counter of this thread is kept here.
thread_local SavedBytes* active = nullptr;

std::mutex users_mutex;
int users = 0;

constexpr auto kAll = static_cast<std::size_t>(c10::CachingAllocator::StatType::AGGREGATE);

Bytes allocator_peak(c10::Device device, const device::MemoryTracker& memory) {
  if (device.is_cpu()) return memory.peak();
  return Bytes(at::accelerator::getDeviceStats(device.index()).allocated_bytes[kAll].peak);
}

/// What is allocated now: on a GPU all of it, libraries' workspaces that are older than `memory` included.
Bytes allocated(c10::Device device, const device::MemoryTracker& memory) {
  if (device.is_cpu()) return memory.live();
  return Bytes(at::accelerator::getDeviceStats(device.index()).allocated_bytes[kAll].current);
}

void fill_gradient_bytes(std::span<Layer> layers, const std::vector<stage::Parameter>& parameters) {
  for (Layer& layer : layers) layer.gradient_bytes = Bytes(0);
  for (const stage::Parameter& parameter : parameters) {
    const at::Tensor& gradient = parameter.value.grad();
    if (gradient.defined())
      *layers[to_index(parameter.layer)].gradient_bytes += Bytes(static_cast<std::int64_t>(gradient.nbytes()));
  }
}

void fill_saved_for_backward_bytes(std::span<Layer> layers, Subject& subject, const std::vector<at::Tensor>& batch) {
  std::vector<stage::Parameter> excluded = subject.program().leaves();
  // Buffers hold frozen parameters, which autograd saves as well.
  for (stage::Parameter& buffer : subject.program().buffers()) excluded.push_back(std::move(buffer));
  SavedBytes saved(layers.size(), excluded);
  (void)subject.program().forward({}, batch, 0, 0, true, &saved);
  const std::vector<Bytes> bytes = saved.by_layer();
  const std::vector<std::vector<bool>> outputs = saved.saved_outputs();
  for (std::size_t i = 0; i < layers.size(); ++i) {
    layers[i].saved_for_backward_bytes = bytes[i];
    for (std::size_t o = 0; o < layers[i].outputs.size(); ++o) layers[i].outputs[o].saved = outputs[i].at(o);
  }
}

/// The allocator's peak of an iteration that nothing observes.
Bytes unobserved_peak(Subject& subject, const std::vector<at::Tensor>& batch, device::MemoryTracker& memory,
                      c10::Device device) {
  struct Unobserved : stage::LayerObserver {
    void begin(int) override {}
    void end(int) override {}
  } unobserved;
  memory.reset_peak();
  if (!device.is_cpu()) at::accelerator::resetPeakStats(device.index());
  subject.observe(batch, unobserved, [] {}, [] {});
  device::synchronize(device);
  return allocator_peak(device, memory);
}

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

LayerMemory::LayerMemory(std::size_t layers, const std::vector<stage::Parameter>& parameters,
                         device::MemoryTracker& tracker)
    : tracker_(tracker),
      growth_(layers),
      transient_(layers),
      watcher_(parameters, [this](int layer, Phase) { switch_to(layer); }) {}

void LayerMemory::begin_peak() {
  peak_ = std::max(peak_, tracker_.peak().value);
  tracker_.reset_peak();
}

void LayerMemory::begin(int layer) {
  watcher_.begin(layer);
  live_ = tracker_.live().value;
  begin_peak();
}

void LayerMemory::end(int layer) {
  const std::int64_t live = tracker_.live().value;
  growth_[to_index(layer)] += live - live_;
  std::int64_t& transient = transient_[to_index(layer)];
  transient = std::max(transient, tracker_.peak().value - std::max(live, live_));
  watcher_.end(layer);
}

void LayerMemory::begin_backward() {
  current_ = -1;
  live_ = tracker_.live().value;
  begin_peak();
  watcher_.begin_backward();
}

void LayerMemory::end_backward() {
  watcher_.end_backward();
  switch_to(-1);
}

void LayerMemory::switch_to(int layer) {
  if (layer == current_) return;
  // What the engine sets up before the first node belongs to that node.
  const int owner = current_ < 0 ? layer : current_;
  if (owner >= 0) {
    std::int64_t& transient = transient_[to_index(owner)];
    transient = std::max(transient, tracker_.peak().value - live_);
    live_ = tracker_.live().value;
    begin_peak();
  }
  current_ = layer;
}

Bytes measured_library_bytes(Subject& subject, const std::vector<at::Tensor>& batch, c10::Device device) {
  if (device.is_cpu()) return Bytes(0);
  device::synchronize(device);
  std::vector<at::Tensor> kept = subject.kept_tensors();
  kept.insert(kept.end(), batch.begin(), batch.end());
  std::map<const void*, std::int64_t> storages;
  for (const at::Tensor& tensor : kept) {
    if (tensor.device() == device)
      storages[tensor.storage().data()] = static_cast<std::int64_t>(tensor.storage().nbytes());
  }
  std::int64_t left = at::accelerator::getDeviceStats(device.index()).requested_bytes[kAll].current;
  for (const auto& [data, bytes] : storages) left -= bytes;
  return Bytes(std::max<std::int64_t>(left, 0));
}

Bytes fill_layer_bytes(std::span<Layer> layers, const std::vector<std::int64_t>& growth,
                       const std::vector<std::int64_t>& transient) {
  if (layers.empty()) return Bytes(0);
  const std::int64_t loss_and_gradient = 2 * activation_bytes(layers.back()).value;
  std::int64_t surplus = 0;  // released beyond a layer's own growth, as a negative number
  std::int64_t resident = 0;
  std::int64_t most = 0;
  for (std::size_t i = 0; i < layers.size(); ++i) {
    const std::int64_t left = growth[i] + surplus;
    surplus = std::min<std::int64_t>(left, 0);
    layers[i].saved_bytes = Bytes(std::max<std::int64_t>(left, 0));
    layers[i].workspace_bytes = Bytes(std::max<std::int64_t>(transient[i], 0));
    resident += layers[i].saved_bytes->value;
    const bool last = i + 1 == layers.size();
    most = std::max(most, resident + layers[i].workspace_bytes->value + (last ? 0 : loss_and_gradient));
  }
  return Bytes(most);
}

void count_kept_bytes(std::span<Layer> layers, Subject& subject, const std::vector<at::Tensor>& batch) {
  fill_gradient_bytes(layers, subject.program().leaves());
  fill_saved_for_backward_bytes(layers, subject, batch);
  for (Layer& layer : layers) layer.saved_bytes = layer.saved_for_backward_bytes;
}

PeakBytes measure_memory(std::span<Layer> layers, Subject& subject, const std::vector<at::Tensor>& batch,
                         device::MemoryTracker& memory, c10::Device device, bool briefly) {
  const std::vector<stage::Parameter>& parameters = subject.program().leaves();
  const Bytes before = allocated(device, memory);  // parameters, gradients, optimizer state, buffers, the batch
  LayerMemory observed(layers.size(), parameters, memory);
  memory.reset_peak();
  subject.observe(batch, observed, [&] { observed.begin_backward(); }, [&] { observed.end_backward(); });
  PeakBytes out;
  out.summed = before + fill_layer_bytes(layers, observed.growth(), observed.transient());
  fill_gradient_bytes(layers, parameters);
  if (briefly) {
    out.allocator = device.is_cpu() ? Bytes(observed.peak()) : allocator_peak(device, memory);
    return out;
  }
  fill_saved_for_backward_bytes(layers, subject, batch);
  out.allocator = unobserved_peak(subject, batch, memory, device);
  return out;
}

}  // namespace stagecraft::profiler
