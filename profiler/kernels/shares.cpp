#include "profiler/kernels/shares.h"

#include <algorithm>
#include <stdexcept>
#include <string>

#include "costmodel/index.h"

namespace stagecraft::profiler {
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
