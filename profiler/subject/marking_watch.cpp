#include <c10/core/Event.h>
#include <c10/core/impl/VirtualGuardImpl.h>

#include <chrono>
#include <cmath>

#include "profiler/subject/backward_watcher.h"
#include "profiler/subject/watch.h"

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

}  // namespace stagecraft::profiler
