#include "profiler/kernels/attribution.h"

#include <fmt/format.h>

#include <algorithm>
#include <span>
#include <stdexcept>
#include <string>

#include "costmodel/index.h"

namespace stagecraft::profiler {
namespace {

template <typename Records, typename Compare>
void sort_if_needed(Records& records, Compare less) {
  if (!std::ranges::is_sorted(records, less)) std::ranges::sort(records, less);
}

/// The records of one correlation in a list sorted by it.
template <typename Record>
std::span<const Record> records_of(const std::vector<Record>& sorted, std::uint32_t correlation) {
  const auto found = std::ranges::equal_range(sorted, correlation, {}, &Record::correlation);
  return {found.begin(), found.end()};
}

/// Who launches when, by thread and time.
class Changes {
 public:
  explicit Changes(std::vector<TagChange> changes) : changes_(std::move(changes)) {
    // Several changes at one instant stay in the order in which they were written: the last one counts.
    std::ranges::stable_sort(changes_, {}, key);
  }
  [[nodiscard]] bool empty() const { return changes_.empty(); }
  [[nodiscard]] std::uint64_t at(std::uint32_t thread, std::int64_t time_ns) const {
    const auto after = std::ranges::upper_bound(changes_, std::pair(thread, time_ns), {}, key);
    if (after == changes_.begin() || std::prev(after)->thread != thread) return 0;
    return std::prev(after)->id;
  }

 private:
  static std::pair<std::uint32_t, std::int64_t> key(const TagChange& change) {
    return {change.thread, change.begin_ns};
  }
  std::vector<TagChange> changes_;
};

/// The share of the work's time that belongs to a layer; 1 if there is none.
double covered(const TraceQuality& quality) {
  if (quality.busy_ns == 0) return 1;
  return static_cast<double>(quality.attributed_ns) / static_cast<double>(quality.busy_ns);
}

}  // namespace

TraceQuality& operator+=(TraceQuality& quality, const TraceQuality& other) {
  quality.activities += other.activities;
  quality.attributed += other.attributed;
  quality.busy_ns += other.busy_ns;
  quality.attributed_ns += other.attributed_ns;
  quality.dropped += other.dropped;
  quality.unknown += other.unknown;
  quality.zero_times += other.zero_times;
  quality.reversed_times += other.reversed_times;
  quality.before_launch += other.before_launch;
  quality.without_launch += other.without_launch;
  quality.disagreements += other.disagreements;
  quality.unmapped_graph_nodes += other.unmapped_graph_nodes;
  return quality;
}

std::vector<std::string> distrust(const TraceQuality& q) {
  std::vector<std::string> out;
  if (q.activities == 0) out.emplace_back("no device work was recorded");
  if (q.dropped > 0) out.push_back(fmt::format("{} records were dropped: not enough buffers", q.dropped));
  if (q.unknown > 0) out.push_back(fmt::format("{} records could not be read", q.unknown));
  if (q.attributed < q.activities) {
    out.push_back(
        fmt::format("{} of {} pieces of device work do not belong to a layer ({:.4f} % of the time is covered)",
                    q.activities - q.attributed, q.activities, covered(q) * 100));
  }
  const auto bad = [&](std::int64_t count, const char* what) {
    if (count > 0) out.push_back(fmt::format("{} of {} pieces of device work {}", count, q.activities, what));
  };
  bad(q.zero_times, "have no timestamp");
  bad(q.reversed_times, "end before they begin");
  bad(q.before_launch, "begin before they were launched");
  bad(q.without_launch, "have no launch in the trace");
  bad(q.disagreements, "have an id of one layer but a launch in another");
  bad(q.unmapped_graph_nodes, "belong to a CUDA graph that was captured before the trace began");
  return out;
}

AttributedTrace attribute(const KernelTrace& trace) {
  std::vector<ExternalId> ids = trace.ids;
  std::vector<HostCall> calls = trace.calls;
  sort_if_needed(ids, [](const ExternalId& a, const ExternalId& b) { return a.correlation < b.correlation; });
  sort_if_needed(calls, [](const HostCall& a, const HostCall& b) {
    return std::pair(a.correlation, a.begin_ns) < std::pair(b.correlation, b.begin_ns);
  });
  const Changes changes(trace.changes);

  AttributedTrace out;
  out.names = trace.names;
  TraceQuality& quality = out.quality;
  quality.dropped = trace.dropped;
  quality.unknown = trace.unknown;
  out.activities.reserve(trace.activities.size());
  for (const DeviceActivity& activity : trace.activities) {
    Attributed work{activity, {}, 0};
    ++quality.activities;
    const bool zero = activity.begin_ns <= 0 || activity.end_ns <= 0;
    const bool reversed = !zero && activity.end_ns < activity.begin_ns;
    quality.zero_times += zero;
    quality.reversed_times += reversed;
    if (zero || reversed) work.activity.end_ns = work.activity.begin_ns;
    const std::int64_t length = work.activity.end_ns - work.activity.begin_ns;

    const auto launches = records_of(calls, activity.correlation);
    if (launches.empty()) {
      ++quality.without_launch;
    } else {
      work.launched_ns = launches.front().begin_ns;
      quality.before_launch += !zero && activity.begin_ns < work.launched_ns;
    }

    std::uint64_t id = 0;
    if (activity.graph_node != 0) {
      const auto node = trace.graph_nodes.find(activity.graph_node);
      if (node == trace.graph_nodes.end()) {
        ++quality.unmapped_graph_nodes;
      } else {
        id = node->second;
      }
    } else {
      const auto own_ids = records_of(ids, activity.correlation);
      if (!own_ids.empty()) id = own_ids.front().id;
      bool agree = std::ranges::all_of(own_ids, [&](const ExternalId& external) { return external.id == id; });
      if (!launches.empty() && !changes.empty())
        agree = agree && changes.at(launches.front().thread, work.launched_ns) == id;
      quality.disagreements += !agree;
    }
    work.tag = decode_tag(id);
    quality.busy_ns += length;
    if (work.tag.phase != Phase::None) {
      ++quality.attributed;
      quality.attributed_ns += length;
    }
    out.activities.push_back(work);
  }
  sort_if_needed(out.activities, [](const Attributed& a, const Attributed& b) {
    return std::tuple(a.activity.begin_ns, a.activity.end_ns, a.activity.stream) <
           std::tuple(b.activity.begin_ns, b.activity.end_ns, b.activity.stream);
  });
  return out;
}

namespace {

constexpr std::int64_t kShortGap_ns = 2000;

LayerPhase part_of(const Tag& tag) {
  switch (tag.phase) {
    case Phase::Data:
    case Phase::None:
      return {0, tag.phase};
    case Phase::Accumulate:
      return {tag.layer, Phase::Backward};
    default:
      return {tag.layer, tag.phase};
  }
}

/// One end of an activity.
struct Event {
  std::int64_t time_ns;
  std::size_t activity;  ///< index among those of the step
};

struct Piece {
  std::int64_t begin_ns;
  std::int64_t end_ns;
  std::int64_t launched_ns;
  PartTime* time;  ///< of its part
  bool accumulates;
};

/// The parts at work in an instant, with the number of their activities, in the order in which they came.
class Working {
 public:
  void add(PartTime* part) {
    const auto it = std::ranges::find(parts_, part, &std::pair<PartTime*, int>::first);
    if (it == parts_.end()) {
      parts_.emplace_back(part, 1);
    } else {
      ++it->second;
    }
  }
  void remove(PartTime* part) {
    const auto it = std::ranges::find(parts_, part, &std::pair<PartTime*, int>::first);
    if (--it->second == 0) parts_.erase(it);
  }
  [[nodiscard]] bool empty() const { return parts_.empty(); }
  /// Gives `length` to the parts in equal shares; what does not divide goes to them in turn.
  void divide(std::int64_t length) {
    const auto count = static_cast<std::int64_t>(parts_.size());
    const std::int64_t rest = length % count;
    for (std::int64_t i = 0; i < count; ++i) {
      PartTime& part = *parts_[to_index(i)].first;
      part.busy_ns += length;
      part.active_ns += length / count + ((i + turn_) % count < rest ? 1 : 0);
    }
    turn_ += count - rest;
  }

 private:
  std::vector<std::pair<PartTime*, int>> parts_;
  std::int64_t turn_ = 0;
};

/// Scales integers so that their sum is the scaled sum rounded down: each gets the increase of the running sum.
class Scaler {
 public:
  Scaler(std::int64_t numerator, std::int64_t denominator) : numerator_(numerator), denominator_(denominator) {}
  [[nodiscard]] std::int64_t operator()(std::int64_t value) {
    const std::int64_t before = scaled(sum_);
    sum_ += value;
    return scaled(sum_) - before;
  }

 private:
  // Nanoseconds of two long steps multiplied leave 64 bits.
  __extension__ using Wide = __int128;
  [[nodiscard]] std::int64_t scaled(std::int64_t value) const {
    return static_cast<std::int64_t>(Wide(value) * numerator_ / denominator_);
  }
  std::int64_t numerator_;
  std::int64_t denominator_;
  std::int64_t sum_ = 0;
};

}  // namespace

StepShares shares(const std::vector<Attributed>& activities, std::int64_t begin_ns, std::int64_t end_ns) {
  if (begin_ns > end_ns) {
    throw std::invalid_argument("a step from " + std::to_string(begin_ns) + " ns to " + std::to_string(end_ns) +
                                " ns ends before it begins");
  }
  StepShares out;
  out.begin_ns = begin_ns;
  out.end_ns = end_ns;
  std::vector<Piece> pieces;
  for (const Attributed& work : activities) {
    const std::int64_t from = std::max(work.activity.begin_ns, begin_ns);
    const std::int64_t to = std::min(work.activity.end_ns, end_ns);
    if (from > to || (from == to && (work.activity.begin_ns != work.activity.end_ns || from == end_ns))) continue;
    PartTime& part = out.parts[part_of(work.tag)];
    if (part.activities++ == 0) part.span_ns = -from;  // completed below, when all ends are known
    const bool accumulates = work.tag.phase == Phase::Accumulate;
    if (accumulates) part.accumulating_ns += to - from;
    pieces.push_back({from, to, work.launched_ns, &part, accumulates});
  }
  PartTime& nobody = out.parts[{0, Phase::None}];

  std::vector<std::size_t> ends(pieces.size());
  for (std::size_t i = 0; i < ends.size(); ++i) ends[i] = i;
  std::ranges::stable_sort(ends, {}, [&](std::size_t i) { return pieces[i].end_ns; });
  std::map<const PartTime*, std::int64_t> last_end;
  for (const Piece& piece : pieces) {
    std::int64_t& last = last_end.try_emplace(piece.time, piece.end_ns).first->second;
    last = std::max(last, piece.end_ns);
  }
  for (auto& [part, time] : out.parts) {
    if (time.activities > 0) time.span_ns += last_end.at(&time);
  }

  Working working;
  std::int64_t now = begin_ns;
  std::size_t ended = 0;
  const auto pass_to = [&](std::int64_t time) {
    if (time > now && !working.empty()) {
      working.divide(time - now);
      out.work_ns += time - now;
    }
    now = std::max(now, time);
  };
  for (const Piece& piece : pieces) {
    while (ended < ends.size() && pieces[ends[ended]].end_ns <= piece.begin_ns) {
      const Piece& done = pieces[ends[ended]];
      // A piece without length may end before it came: both are met below.
      if (done.begin_ns == done.end_ns) {
        ++ended;
        continue;
      }
      pass_to(done.end_ns);
      working.remove(done.time);
      ++ended;
    }
    if (working.empty() && piece.begin_ns > now) {
      const std::int64_t gap = piece.begin_ns - now;
      piece.time->gap_ns += gap;
      if (piece.accumulates) piece.time->accumulating_gap_ns += gap;
      if (piece.launched_ns > now) {
        out.gaps.host_wait_ns += gap;
      } else if (gap < kShortGap_ns && piece.launched_ns > 0) {
        out.gaps.kernel_wait_ns += gap;
      } else {
        out.gaps.other_ns += gap;
      }
      now = piece.begin_ns;
    }
    pass_to(piece.begin_ns);
    if (piece.begin_ns < piece.end_ns) working.add(piece.time);
  }
  for (; ended < ends.size(); ++ended) {
    const Piece& done = pieces[ends[ended]];
    if (done.begin_ns == done.end_ns) continue;
    pass_to(done.end_ns);
    working.remove(done.time);
  }
  nobody.gap_ns += end_ns - now;
  out.gaps.other_ns += end_ns - now;
  if (nobody == PartTime{}) out.parts.erase({0, Phase::None});
  return out;
}

StepShares debias(StepShares step, std::int64_t plain_ns, bool* scaled) {
  const std::int64_t profiled = step.end_ns - step.begin_ns;
  const std::int64_t gaps = profiled - step.work_ns;
  const bool all = plain_ns < step.work_ns;
  if (scaled) *scaled = all;
  step.end_ns = step.begin_ns + plain_ns;
  if (profiled == 0) return step;
  if (all) {
    Scaler of_identity(plain_ns, profiled);
    for (auto& [part, time] : step.parts) {
      time.active_ns = of_identity(time.active_ns);
      time.gap_ns = of_identity(time.gap_ns);
      for (std::int64_t* ns : {&time.busy_ns, &time.accumulating_ns, &time.accumulating_gap_ns})
        *ns = Scaler(plain_ns, profiled)(*ns);
    }
    step.work_ns = Scaler(plain_ns, profiled)(step.work_ns);
  } else if (gaps > 0) {
    Scaler of_gaps(plain_ns - step.work_ns, gaps);
    for (auto& [part, time] : step.parts) {
      time.gap_ns = of_gaps(time.gap_ns);
      time.accumulating_gap_ns = Scaler(plain_ns - step.work_ns, gaps)(time.accumulating_gap_ns);
    }
  } else {
    // Work without a gap that took less than unprofiled: what is missing belongs to nobody.
    step.parts[{0, Phase::None}].gap_ns += plain_ns - step.work_ns;
  }
  Scaler of_classes(all ? plain_ns : plain_ns - step.work_ns, all ? profiled : std::max<std::int64_t>(gaps, 1));
  for (std::int64_t* ns : {&step.gaps.host_wait_ns, &step.gaps.kernel_wait_ns, &step.gaps.other_ns}) {
    *ns = of_classes(*ns);
  }
  return step;
}

}  // namespace stagecraft::profiler
