#include "profiler/kernels/attribution.h"

#include <fmt/format.h>

#include <algorithm>
#include <span>

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

}  // namespace stagecraft::profiler
