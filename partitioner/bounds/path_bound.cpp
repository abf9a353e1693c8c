#include "partitioner/bounds/path_bound.h"

#include <algorithm>

#include "costmodel/index.h"
#include "partitioner/bounds/bound_limits.h"

namespace stagecraft::partitioner {
namespace {

constexpr int kNone = PathStages::kNone;
constexpr Seconds kNever = PathStages::kNever;

}  // namespace

std::unique_ptr<PathBound> PathBound::of(const PipelineCosts& costs, std::optional<Bytes> limit, int most_cuts) {
  if (!costs.waits() || costs.dag().nodes == 0) return nullptr;
  return std::unique_ptr<PathBound>(new PathBound(costs, limit, most_cuts));
}

PathBound::PathBound(const PipelineCosts& costs, std::optional<Bytes> limit, int most_cuts)
    : cuts_(costs, most_cuts), stages_(costs, cuts_, limit), orders_(costs, cuts_, stages_) {}

/// The least replicas with which a stage keeps within the time, however many microbatches a replica may hold.
const PathBound::Replicas* PathBound::least_replicas(const StageBound& stage, const Prefix& prefix,
                                                     Seconds trip) const {
  const std::vector<Replicas>& all = stages_.replicas();
  for (std::size_t i = stages_.first_replicas(stage, stage.on_path ? prefix.before : Seconds(0)); i < all.size(); ++i) {
    if (stages_.keeps(stage, all[i], all[i].share, prefix, trip, Seconds(0))) return &all[i];
  }
  return nullptr;
}

bool PathBound::should_stop(const std::function<bool()>& stop) {
  constexpr std::uint64_t kOften = 1 << 6;
  return ++asked_ % kOften == 0 && stop();
}

bool PathBound::go_forward(const std::function<bool()>& stop) {
  const std::size_t cuts = cuts_.coarse().size();
  const int devices = stages_.devices();
  const std::size_t places = place(devices) + 1;
  const std::size_t waves = stages_.waves();
  const std::vector<Replicas>& replicas = stages_.replicas();
  prefixes_.assign(cuts * places, Prefix::none());
  least_before_.assign(cuts, kNone);
  std::fill_n(prefixes_.begin(), places, Prefix{});
  least_before_[0] = 0;
  for (std::size_t i = 0; i + 1 < cuts; ++i) {
    Prefix* const before_cut = &prefixes_[i * places];
    for (std::size_t g = 1; g < places; ++g) before_cut[g].merge(before_cut[g - 1], waves);
    if (!before_cut[places - 1].exists() || least_before_[i] >= devices) continue;
    for (std::size_t j = i + 1; j < cuts; ++j) {
      if (should_stop(stop)) return false;
      const StageBound next = stage(i, j);
      if (!stages_.fits(next)) break;
      const Seconds trip = next.trip + stages_.way_after(cuts_.coarse()[j]);
      const Replicas* least = least_replicas(next, before_cut[places - 1], trip);
      if (least == nullptr) {
        // A longer stage takes at least as long.
        const Seconds before = next.on_path ? before_cut[places - 1].before : Seconds(0);
        if (stages_.first_replicas(next, before) == replicas.size()) break;
        continue;
      }
      if (least_before_[i] + least->first > devices) continue;
      least_before_[j] = std::min(least_before_[j], least_before_[i] + least->first);
      const std::size_t first = place(least_before_[i]);
      for (std::size_t g = first; g < places; ++g) {
        if (!before_cut[g].exists()) continue;
        // More devices change nothing before the cut here.
        if (g > first && before_cut[g] == before_cut[g - 1]) continue;
        least = least_replicas(next, before_cut[g], trip);
        if (least == nullptr) continue;
        // With more replicas, everything is later except what waits for the replicas.
        const Replicas* const last = waves == 0 ? least : &replicas.back();
        for (const Replicas* more = least; more <= last; ++more) {
          const std::size_t to = g + place(more->first);
          if (to >= places) break;
          if (more != least && !stages_.keeps(next, *more, more->share, before_cut[g], trip, Seconds(0))) continue;
          prefixes_[j * places + to].merge(stages_.after(next, *more, before_cut[g]), waves);
        }
      }
    }
  }
  return true;
}

bool PathBound::find_least_after(const std::function<bool()>& stop) {
  const std::size_t cuts = cuts_.coarse().size();
  const int devices = stages_.devices();
  least_after_.assign(cuts, kNone);
  least_after_.back() = 0;
  for (std::size_t i = cuts - 1; i-- > 0;) {
    if (least_before_[i] >= devices) continue;
    const Prefix& before = prefix(i, devices);
    for (std::size_t j = i + 1; j < cuts; ++j) {
      if (should_stop(stop)) return false;
      if (least_after_[j] >= devices || least_before_[j] > devices) continue;
      const StageBound next = stage(i, j);
      if (!stages_.fits(next)) break;
      const Replicas* least = least_replicas(next, before, next.trip + stages_.way_after(cuts_.coarse()[j]));
      if (least != nullptr) least_after_[i] = std::min(least_after_[i], least->first + least_after_[j]);
    }
  }
  return true;
}

/// Remembers a way from the cut on, if the way leaves enough devices for the stages before.
void PathBound::insert(std::size_t cut, const Suffix& suffix) {
  std::vector<Suffix>& all = suffixes_[cut];
  const std::size_t at = to_index(std::max(0, suffix.devices - least_after_[cut]) / width_[cut]);
  if (at < all.size()) all[at].merge(suffix, stages_.waves());
}

/// Adds stages between two of the neighbouring cuts that are joined in `cut`; such stages have unknown costs. A stage
/// of r replicas raises the microbatches in flight by at most 2 r, as flight(next, r) < next + 2 r.
void PathBound::add_stages_without_work(std::size_t cut) {
  if (!cuts_.coarse()[cut].several) return;
  std::vector<Suffix>& all = suffixes_[cut];
  Suffix best = Suffix::none();  // best.flight is reduced by twice the devices
  for (std::size_t g = 0; g < all.size(); ++g) {
    Suffix& suffix = all[g];
    const int first = least_after_[cut] + to_int(g) * width_[cut];
    const int last = first + width_[cut] - 1;
    if (suffix.exists()) {
      Suffix less = suffix;
      less.flight -= 2 * std::int64_t{suffix.devices};
      best.merge(less, stages_.waves());
    }
    if (!best.exists()) continue;
    suffix.devices = std::min(suffix.devices, std::max(first, best.devices));
    suffix.trip = best.trip;
    suffix.queue = best.queue;
    suffix.flight = std::max(suffix.flight, best.flight + 2 * std::int64_t{last});
  }
}

bool PathBound::go_back(const std::function<bool()>& stop) {
  const std::size_t cuts = cuts_.coarse().size();
  const int devices = stages_.devices();
  const std::vector<Replicas>& all = stages_.replicas();
  suffixes_.assign(cuts, {});
  width_.assign(cuts, 1);
  suffixes_.back() = {Suffix{}};
  for (std::size_t i = cuts - 1; i-- > 0;) {
    const int spare = devices - least_before_[i] - least_after_[i];
    if (spare < 0) continue;
    width_[i] = spare <= BoundLimits::kMostWithWaves ? 1 : spare / BoundLimits::kPlaces + 1;
    suffixes_[i].assign(to_index(spare / width_[i]) + 1, Suffix::none());
    for (std::size_t j = i + 1; j < cuts; ++j) {
      if (should_stop(stop)) return false;
      if (suffixes_[j].empty()) continue;
      const StageBound next = stage(i, j);
      if (!stages_.fits(next)) break;
      for (const Suffix& later : suffixes_[j]) {
        const int most = devices - least_before_[i] - later.devices;
        if (most < 1) continue;
        const Seconds arrival = next.on_path ? prefix(i, devices - later.devices - 1).before : Seconds(0);
        for (std::size_t k = stages_.first_replicas(next, arrival); k < all.size(); ++k) {
          const int r = all[k].first;
          if (r > most) break;
          if (stages_.keeps(next, all[k], prefix(i, devices - later.devices - r), later))
            insert(i, stages_.before(next, all[k], later));
        }
      }
    }
    add_stages_without_work(i);
  }
  return true;
}

/// Makes each entry of suffixes_ the best of all ways with at most so many devices.
void PathBound::find_best_after() {
  for (std::vector<Suffix>& all : suffixes_) {
    for (std::size_t g = 1; g < all.size(); ++g) {
      if (all[g - 1].exists()) all[g].merge(all[g - 1], stages_.waves());
    }
  }
}

/// The best Suffix of the cut on at most so many devices; null if no stages after the cut keep within the time.
const PathBound::Suffix* PathBound::best_after(std::size_t cut, int devices) const {
  const std::vector<Suffix>& all = suffixes_[cut];
  if (all.empty() || least_after_[cut] > devices) return nullptr;
  const std::size_t at = std::min(all.size() - 1, to_index((devices - least_after_[cut]) / width_[cut]));
  return all[at].devices > devices ? nullptr : &all[at];
}

std::optional<bool> PathBound::refutes(Seconds time, int devices, const std::function<bool()>& stop) {
  stages_.ask(time, devices);
  step_ = devices <= BoundLimits::kMostWithWaves ? 1 : devices / BoundLimits::kPlaces + 1;
  if (!go_forward(stop)) return std::nullopt;
  if (least_before_.back() > devices) return true;
  if (!find_least_after(stop)) return std::nullopt;
  if (!go_back(stop)) return std::nullopt;
  if (std::ranges::none_of(suffixes_.front(), [&](const Suffix& all) { return all.devices <= devices; })) return true;
  if (devices > BoundLimits::kMostOrderDevices) return false;
  find_best_after();
  return orders_.refutes([this](std::size_t cut, int left) { return best_after(cut, left); }, stop);
}

}  // namespace stagecraft::partitioner
