#include "profiler/subject/watch.h"

#include <ATen/ops/zeros.h>
#include <c10/core/Event.h>
#include <c10/core/impl/VirtualGuardImpl.h>

#include <chrono>
#include <cmath>
#include <map>
#include <mutex>
#include <utility>

#include "executor/device/device.h"
#include "profiler/subject/backward_watcher.h"

namespace stagecraft::profiler {
namespace {

class HostMarks : public Marks {
 public:
  explicit HostMarks(std::function<std::int64_t()> now_ns) : now_ns_(std::move(now_ns)) {}
  void mark() override { marks_.push_back(now_ns_()); }
  std::vector<std::int64_t> take() override { return std::exchange(marks_, {}); }

 private:
  std::function<std::int64_t()> now_ns_;
  std::vector<std::int64_t> marks_;
};

class EventMarks : public Marks {
 public:
  explicit EventMarks(c10::Device device) : device_(device), guard_(device.type()) {}
  void mark() override {
    events_.emplace_back(device_.type(), c10::EventFlag::BACKEND_DEFAULT);
    events_.back().record(guard_.getStream(device_));
  }
  std::vector<std::int64_t> take() override {
    constexpr double kNanosecondsPerMillisecond = 1e6;
    std::vector<std::int64_t> out;
    for (const c10::Event& event : events_) {
      out.push_back(&event == &events_.front()
                        ? 0
                        : std::llround(events_.front().elapsedTime(event) * kNanosecondsPerMillisecond));
    }
    events_.clear();
    return out;
  }

 private:
  c10::Device device_;
  c10::impl::VirtualGuardImpl guard_;
  std::vector<c10::Event> events_;
};

class MarkingWatch : public Watch {
 public:
  MarkingWatch(const std::vector<stage::Parameter>& parameters, std::unique_ptr<Marks> marks,
               std::vector<device::RangeName> ranges)
      : marks_(std::move(marks)),
        watcher_(parameters, [this](int layer, Phase phase) { on_node(layer, phase); }, std::move(ranges)) {}

  void begin_step(int step) override {
    step_ = step;
    watcher_.reset();
    first_ = owners_.size();
    change({});
  }
  void begin(int layer) override {
    watcher_.begin(layer);
    change({layer, Phase::Forward, 0, step_});
  }
  void end(int layer) override {
    change({});
    watcher_.end(layer);
  }
  void begin_backward() override {
    waiting_ = true;
    watcher_.begin_backward();
    change({});
  }
  void end_backward() override {
    watcher_.end_backward();
    change({});
    waiting_ = false;
    unmapped_ += watcher_.unmapped();
  }
  void begin_part(Tag tag) override {
    tag.step = step_;
    change(tag);
  }
  void end_part() override { change({}); }
  void end_step() override {
    change({});
    steps_.emplace_back(first_, owners_.size() - 1);
  }
  std::vector<StepShares> take() override {
    const std::vector<std::int64_t> times = marks_->take();
    trace_ = {};
    std::vector<StepShares> out;
    for (const auto& [first, last] : steps_) {
      std::vector<Attributed> stretches;
      for (std::size_t i = first; i < last; ++i) {
        if (owners_[i].phase == Phase::None) continue;
        stretches.push_back({{.begin_ns = times[i], .end_ns = times[i + 1]}, owners_[i], times[i]});
      }
      out.push_back(shares(stretches, times[first], times[last]));
      trace_.activities.insert(trace_.activities.end(), stretches.begin(), stretches.end());
    }
    owners_.clear();
    steps_.clear();
    return out;
  }
  const AttributedTrace& trace() const override { return trace_; }
  std::int64_t unmapped() const override { return unmapped_; }
  void pause() override {}
  void resume() override {}

 private:
  /// From here on, the time belongs to `owner`.
  void change(const Tag& owner) {
    marks_->mark();
    owners_.push_back(owner);
  }
  void on_node(int layer, Phase phase) {
    const Tag owner{layer, phase, 0, step_};
    // Work before the first node belongs to that node: the engine sets it up.
    if (std::exchange(waiting_, false)) {
      owners_.back() = owner;
    } else {
      change(owner);
    }
  }

  std::unique_ptr<Marks> marks_;
  BackwardWatcher watcher_;
  std::vector<Tag> owners_;                                 ///< from each mark to the next
  std::vector<std::pair<std::size_t, std::size_t>> steps_;  ///< the first and the last mark of each step
  std::size_t first_ = 0;
  AttributedTrace trace_;
  int step_ = 0;
  bool waiting_ = false;
  std::int64_t unmapped_ = 0;
};

}  // namespace

std::int64_t steady_ns() {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(std::chrono::steady_clock::now().time_since_epoch())
      .count();
}

double steady_seconds() { return static_cast<double>(steady_ns()) * 1e-9; }

std::unique_ptr<Marks> make_host_marks(std::function<std::int64_t()> now_ns) {
  return std::make_unique<HostMarks>(std::move(now_ns));
}

std::unique_ptr<Marks> make_event_marks(c10::Device device) { return std::make_unique<EventMarks>(device); }

std::unique_ptr<Watch> make_marking_watch(const std::vector<stage::Parameter>& parameters, std::unique_ptr<Marks> marks,
                                          std::vector<device::RangeName> ranges) {
  return std::make_unique<MarkingWatch>(parameters, std::move(marks), std::move(ranges));
}

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
