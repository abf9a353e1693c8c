#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <vector>

#include "costmodel/schedule.h"
#include "costmodel/simulation/simulation_input.h"
#include "costmodel/units.h"

namespace stagecraft::simulation {

/// The state of a run at one moment, with times and microbatches relative to that moment.
struct Snapshot {
  Seconds now{};
  int microbatch = 0;
  std::vector<std::size_t> next = {};     ///< of each rank: its first action that is not done
  std::vector<std::int64_t> counts = {};  ///< equal in equal states
  std::vector<Seconds> times = {};        ///< equal within a tolerance
  std::vector<double> rates = {};         ///< of the flows; equal within kEqual
};

/// Times count as equal if they differ by at most this share of the period: rounding makes equal times differ by about
/// 1e-12 of it.
inline constexpr double kEqual = 1e-10;

/// Whether the state of the later snapshot is that of the earlier one.
[[nodiscard]] bool is_repeated(const Snapshot& earlier, const Snapshot& later);

/// Whether every list repeats itself: the actions after the later snapshot are those between the two snapshots, with
/// microbatch numbers that are higher by the difference of the snapshots' microbatches.
[[nodiscard]] bool lists_repeat(const std::vector<std::vector<Action>>& lists, const Snapshot& earlier,
                                const Snapshot& later);

/// The latest snapshots of a run: the newest one and at most kMostCycles before it, since a run may repeat itself only
/// after several cycles. Each snapshot reuses the memory of an older one.
class Repetition {
 public:
  /// Longer periods are not found: 12 is a multiple of 1, 2, 3, 4 and 6 replicas.
  static constexpr std::size_t kMostCycles = 12;

  /// The next snapshot, to be filled; its lists are empty.
  [[nodiscard]] Snapshot& add();
  /// The shortest period from an earlier snapshot to the one that was added last; absent if there is none.
  [[nodiscard]] std::optional<Period> find(const std::vector<std::vector<Action>>& lists) const;

 private:
  std::array<Snapshot, kMostCycles + 1> snapshots_;  // in turn
  std::size_t added_ = 0;
};

}  // namespace stagecraft::simulation
