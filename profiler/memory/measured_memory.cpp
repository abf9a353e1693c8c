#include "profiler/memory/measured_memory.h"

#include <ATen/DeviceAccelerator.h>

#include <algorithm>
#include <map>
#include <optional>
#include <utility>

#include "costmodel/index.h"
#include "executor/device/device.h"
#include "profiler/memory/layer_memory.h"
#include "profiler/memory/saved_bytes.h"

namespace stagecraft::profiler {
namespace {

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
