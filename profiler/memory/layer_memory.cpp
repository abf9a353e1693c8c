#include "profiler/memory/layer_memory.h"

#include <algorithm>

#include "costmodel/index.h"

namespace stagecraft::profiler {

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

}  // namespace stagecraft::profiler
