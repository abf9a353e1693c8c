#pragma once

#include <cstddef>

namespace stagecraft::partitioner {

/// Limits of the bounds: beyond them, a bound is left out or looser, never wrong.
struct BoundLimits {
  // TripBound: the sizes of its tables, and the length of a question.

  static constexpr int kEveryDevice = 128;            ///< of more devices, about as many numbers are distinguished
  static constexpr std::size_t kMostWholeSets = 500;  ///< where layers without work are kept, as devices in order need
  static constexpr std::size_t kMostWays = 8;         ///< numbers of microbatches in flight for a set and devices
  static constexpr std::size_t kMostWayEntries = 8'000'000;  ///< entries of the table of ways
  static constexpr double kMostEntries = 4e6;                ///< entries of the tables of prefixes
  static constexpr double kMostSteps = 4e8;                  ///< steps of one question

  // PathBound.

  static constexpr int kFinerCuts = 6;          ///< times as many cuts in a level as in the next coarser one
  static constexpr int kPlaces = 32;            ///< numbers of devices distinguished, where waves do not count
  static constexpr int kMostWithWaves = 64;     ///< devices up to which waits of replicas for each other count
  static constexpr int kMostOrderDevices = 16;  ///< of more devices, there are too many sequences of replica counts
  static constexpr int kMostSequences = 1500;   ///< tried to refute a step, with their beginnings

  // OrderBound.

  static constexpr int kRounds = 200;      ///< of one question
  static constexpr double kNear = 1e-4;    ///< the bound and the best cuts agree
  static constexpr int kIdleRounds = 30;   ///< rounds in a row without a new chain, new cuts or a larger bound
  static constexpr double kLarger = 1e-6;  ///< the least by which a bound is called larger
  static constexpr int kPlays = 100;       ///< of the matrix game for each new chain or cuts
  static constexpr std::size_t kMostEvents = 200'000;       ///< of one order; beyond, nothing is known of it
  static constexpr std::size_t kMostAllEvents = 2'000'000;  ///< of all orders that are remembered
};

}  // namespace stagecraft::partitioner
