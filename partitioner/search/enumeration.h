#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <vector>

#include "costmodel/units.h"
#include "partitioner/bounds/trip_bound.h"
#include "partitioner/costs/lattice.h"
#include "partitioner/costs/pipeline_costs.h"
#include "partitioner/search/chain_search.h"
#include "partitioner/search/search_context.h"
#include "partitioner/search/search_tuning.h"

namespace stagecraft::partitioner {

/// Bisects for the largest time from `low` to `high` that `refutes` rejects as too short. Stops at `precision`,
/// relative to the result, or when `refutes` runs out of time and returns nothing. `part`: where in the remaining
/// interval to probe; near 0 for a `refutes` that is faster where it rejects. While `high` is kForever, each probe
/// doubles the time; while the ends differ by more than a factor of 4, it is their geometric mean. Returns `low` if
/// that is 0.
[[nodiscard]] Seconds least_time(Seconds low, Seconds high, double precision, double part,
                                 const std::function<std::optional<bool>(Seconds time)>& refutes);

/// Searches with TripBound: for a bound of all plans, for splits that TripBound suggests, and for all splits up to a
/// bound. Each search goes on for the time that the context allows.
class TripSearch {
 public:
  /// Null without a TripBound: for too many down-sets, if nothing waits, and for several stages per device. The context
  /// must outlive the object.
  [[nodiscard]] static std::unique_ptr<TripSearch> of(const SearchContext& context);

  /// The largest time found from `low` on that no split over so many devices can keep within.
  [[nodiscard]] Seconds least(Seconds low, int devices, double precision);
  /// The same for all devices in order, up to the last wanted step.
  [[nodiscard]] Seconds least_in_order(Seconds low);

  /// The splits that the constraints allow and whose bounds are within a little more time than `least`; with
  /// `in_order`, up to the last wanted step.
  [[nodiscard]] std::vector<Split> suggested(Seconds least, int devices, bool in_order = false);
  /// The same, and if the first of them does not fit in memory, also those of a bound with less memory.
  [[nodiscard]] std::vector<Split> suggested_that_fit(Seconds least, int devices, bool in_order);

  /// Predicts all splits over at most so many devices in order, by bounds that rise from `low`. Returns the bound up to
  /// which no split was left out.
  Seconds enumerate_all(Seconds low, int devices);

  /// As in TripBound.
  [[nodiscard]] bool is_whole() const { return bound_->is_whole(); }
  [[nodiscard]] bool knows_order() const { return bound_->knows_order(); }

 private:
  TripSearch(const SearchContext& context, std::unique_ptr<TripBound> bound);

  const SearchContext& context_;
  std::unique_ptr<TripBound> bound_;
};

/// The searches over all splits that the constraints allow: one, or if all stages need the same number of replicas, one
/// for each number of chunks, positions and replicas. Each search goes on for the time that the context allows. If the
/// graph has too many down-sets, the searches cut stages from one order of the layers.
class ChainSpaces {
 public:
  /// The context must outlive it.
  explicit ChainSpaces(const SearchContext& context);
  ChainSpaces(const ChainSpaces&) = delete;
  ChainSpaces& operator=(const ChainSpaces&) = delete;

  [[nodiscard]] bool is_empty() const { return spaces_.empty(); }
  /// Whether the searches together cover every split.
  [[nodiscard]] bool is_whole() const { return is_whole_; }

  /// The largest time found, from `low` to `high`, that all searches refute; `low` if !is_whole().
  [[nodiscard]] Seconds least(Seconds low, Seconds high);

  /// Predicts all splits by bounds that rise from `low`. Returns the bound up to which nothing was left out: `done` is
  /// known beforehand.
  Seconds enumerate_all(Seconds low, Seconds done);

 private:
  void make_lattice();
  void add(const SearchSpace& space);
  void add_equal_replicas(SearchSpace space);

  const SearchContext& context_;
  std::optional<Lattice> lattice_;
  std::vector<std::unique_ptr<ChainSearch>> spaces_;
  bool is_whole_ = true;
};

}  // namespace stagecraft::partitioner
