#include <ATen/ops/zeros.h>

#include <map>
#include <mutex>
#include <utility>

#include "executor/device/device.h"
#include "profiler/subject/backward_watcher.h"
#include "profiler/subject/watch.h"

namespace stagecraft::profiler {
namespace {

/// Layers of Phase::Data with which the work at a step's ends is tagged.
constexpr std::int64_t kBeginMark = 1;
constexpr std::int64_t kEndMark = 2;
constexpr int kStepsModulo = 4096;

bool is_mark(const Tag& tag) { return tag.phase == Phase::Data && (tag.layer == kBeginMark || tag.layer == kEndMark); }

class TracingWatch : public Watch {
 public:
  TracingWatch(const std::vector<stage::Parameter>& parameters, KernelTracer& tracer, c10::Device device,
               int last_layer, std::vector<device::RangeName> ranges)
      : tracer_(tracer),
        last_layer_(last_layer),
        watcher_(parameters, [this](int layer, Phase phase) { on_node({layer, phase, 0, step_}); }, std::move(ranges)) {
    push({.phase = Phase::Data});
    marker_ = at::zeros({1}, at::TensorOptions().device(device));
    pop();
  }

  void begin_step(int step) override {
    step_ = step;
    watcher_.reset();
    mark(kBeginMark);
  }
  void begin(int layer) override {
    watcher_.begin(layer);
    push({layer, Phase::Forward, 0, step_});
  }
  void end(int layer) override {
    pop();
    watcher_.end(layer);
  }
  void begin_backward() override {
    // The engine makes the loss's own gradient before the first node.
    const Tag tag{last_layer_, Phase::Backward, 0, step_};
    push(tag);
    {
      const std::lock_guard lock(mutex_);
      in_nodes_[tracer_.thread()] = encode(tag);
    }
    watcher_.begin_backward();
  }
  void end_backward() override {
    watcher_.end_backward();
    pop();
    unmapped_ += watcher_.unmapped();
    const std::lock_guard lock(mutex_);
    in_nodes_.erase(tracer_.thread());
  }
  void begin_part(Tag tag) override {
    tag.step = step_;
    push(tag);
  }
  void end_part() override { pop(); }
  void end_step() override {
    mark(kEndMark);
    steps_.push_back(step_);
  }

  std::vector<StepShares> take() override {
    KernelTrace recorded = tracer_.take();
    {
      const std::lock_guard lock(mutex_);
      recorded.changes = std::exchange(changes_, {});
    }
    trace_ = attribute(recorded);
    std::map<std::pair<int, std::int64_t>, const DeviceActivity*> marks;
    for (const Attributed& work : trace_.activities) {
      if (is_mark(work.tag)) marks[{work.tag.step, work.tag.layer}] = &work.activity;
    }
    std::vector<StepShares> out;
    for (const int step : std::exchange(steps_, {})) {
      const auto begin = marks.find({step % kStepsModulo, kBeginMark});
      const auto end = marks.find({step % kStepsModulo, kEndMark});
      // Without its marks a step cannot be bounded; the trace's quality says that records are missing.
      if (begin == marks.end() || end == marks.end() || end->second->begin_ns < begin->second->end_ns) continue;
      const std::int64_t from = begin->second->end_ns;
      const std::int64_t to = end->second->begin_ns;
      out.push_back(shares(of_step(step, from, to), from, to));
    }
    return out;
  }
  const AttributedTrace& trace() const override { return trace_; }
  std::int64_t unmapped() const override { return unmapped_; }
  void pause() override {
    paused_ = true;
    tracer_.stop();
  }
  void resume() override {
    tracer_.start();
    paused_ = false;
  }

 private:
  /// The tags in a step's time [from, to); a tag of another step would be one that a thread kept.
  std::vector<Attributed> of_step(int step, std::int64_t from, std::int64_t to) const {
    std::vector<Attributed> out;
    for (const Attributed& seen : trace_.activities) {
      if (is_mark(seen.tag) || seen.activity.end_ns < from || seen.activity.begin_ns > to) continue;
      Attributed work = seen;
      if (work.tag.step != step % kStepsModulo) work.tag = {};
      out.push_back(work);
    }
    return out;
  }
  void mark(std::int64_t which) {
    push({which, Phase::Data, 0, step_});
    marker_.zero_();
    pop();
  }
  void note(std::uint64_t id) {
    const std::lock_guard lock(mutex_);
    changes_.push_back({tracer_.thread(), tracer_.now_ns(), id});
  }
  void push(const Tag& tag) {
    if (paused_) return;
    const std::uint64_t id = encode(tag);
    tracer_.push(id);
    note(id);
  }
  void pop() {
    if (paused_) return;
    tracer_.pop();
    note(0);
  }
  /// A thread of autograd keeps the tag of a node until its next one.
  void on_node(const Tag& tag) {
    if (paused_) return;
    const std::uint64_t id = encode(tag);
    const std::uint32_t thread = tracer_.thread();
    {
      const std::lock_guard lock(mutex_);
      std::uint64_t& last = in_nodes_[thread];
      if (last == id) return;
      if (last != 0) tracer_.pop();
      last = id;
    }
    tracer_.push(id);
    note(id);
  }

  KernelTracer& tracer_;
  at::Tensor marker_;
  int last_layer_;
  BackwardWatcher watcher_;
  std::mutex mutex_;  ///< of what autograd's threads touch
  std::vector<TagChange> changes_;
  std::map<std::uint32_t, std::uint64_t> in_nodes_;  ///< the id on top of each thread that ran a node
  std::vector<int> steps_;
  AttributedTrace trace_;
  int step_ = 0;
  bool paused_ = false;
  std::int64_t unmapped_ = 0;
};

}  // namespace

std::unique_ptr<Watch> make_tracing_watch(const std::vector<stage::Parameter>& parameters, KernelTracer& tracer,
                                          c10::Device device, int last_layer, std::vector<device::RangeName> ranges) {
  return std::make_unique<TracingWatch>(parameters, tracer, device, last_layer, std::move(ranges));
}

}  // namespace stagecraft::profiler
