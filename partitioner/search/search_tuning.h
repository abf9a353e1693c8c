#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

#include "costmodel/units.h"

namespace stagecraft::partitioner {

/// The numbers by which searches are tuned: shares of their time, precisions, sizes. None of them changes a prediction
/// or makes a bound wrong: they decide which plans and bounds are found, and how soon.
struct SearchTuning {
  // Strategy `optimal`: when its parts end, as shares of the time limit.

  static constexpr double kDraftShare = 0.5;            ///< predicting drafts ends here if one of them fits, ...
  static constexpr Seconds kDraftTime{1};               ///< ... but not before this time
  static constexpr double kFirstPolishShare = 0.1;      ///< the best draft is improved before any bound
  static constexpr double kPathShare = 0.2;             ///< PathBound
  static constexpr double kTripShare = 0.24;            ///< TripBound
  static constexpr double kLongPathShare = 0.36;        ///< PathBound without TripBound, if it suggests splits
  static constexpr double kPolishShare = 0.4;           ///< local search
  static constexpr double kShakeShare = 0.5;            ///< its random moves
  static constexpr double kBoundShare = 0.65;           ///< bounds without splits
  static constexpr double kLongerShare = 0.12;          ///< the local search takes TripBound's time where there is none
  static constexpr double kTripsEnumeratedShare = 0.8;  ///< TripBound's enumeration, if it leaves nodes out
  static constexpr double kPlaceShare = 0.24;           ///< the first placements
  static constexpr double kSearchShare = 0.9;           ///< the last placements begin

  static constexpr int kFewPathCuts = 200;         ///< of PathBound in large graphs, for a first bound
  static constexpr int kMostPathCuts = 1000;       ///< of PathBound, whose time grows with their square
  static constexpr double kQuickPrecision = 0.03;  ///< of a bound that only has to refute a setting
  /// Plans need more memory than TripBound counts, so it also suggests splits that keep within less, until one fits.
  static constexpr std::array kLessMemory{0.0, 0.005, 0.01, 0.02, 0.04, 0.08};
  static constexpr double kBoundPrecision = 2e-3;    ///< of a bound of all splits: well below kTie
  static constexpr double kSegmentPrecision = 1e-4;  ///< of SegmentBound, which takes no time
  static constexpr double kPathProbe = 0.15;         ///< PathBound is asked near the lower end: it refutes fast
  static constexpr std::size_t kMostFromPath = 16;   ///< splits of PathBound that are predicted, ...
  static constexpr std::size_t kLeastFromPath = 3;   ///< ... and these even if its time is up
  static constexpr Seconds kSmallestTime{0.5};       ///< search for the plan with the least memory if none fits
  static constexpr Seconds kRemedyTime{0.1};         ///< the same after each change that might help: there are many

  // SearchTime: rounds.

  static constexpr Seconds kFirstRound{3};     ///< the default time limit
  static constexpr double kRoundFactor = 6;    ///< as much longer is each round than the one before
  static constexpr double kLeastRound = 0.01;  ///< share of the round before; of less time, nothing is expected
  static constexpr unsigned kFirstSeed = 1;    ///< of random moves in round 0; each further round has the next one

  // Enumeration.

  static constexpr double kMostBeyond = 16;             ///< beyond the bound; then comes an enumeration without one
  static constexpr std::size_t kMostWaiting = 20'000;   ///< splits that wait to be predicted, the smallest bounds first
  static constexpr std::size_t kMostTripSets = 20'000;  ///< of TripBound, which visits pairs of sets
  static constexpr std::size_t kMostSets = 1'500'000;   ///< of ChainSearch, whose tables have an entry for each
  static constexpr std::size_t kMostTableEntries = 60'000'000;  ///< of all tables: 240 MB

  // Plans that were predicted.

  static constexpr std::size_t kMostKeptPlans = 200;  ///< thinned out at twice as many
  static constexpr std::size_t kMostSplits = 4;       ///< the best, from which moves start
  static constexpr std::size_t kMostPlaced = 5;       ///< plans whose placement is varied

  // Local search.

  static constexpr int kEveryPair = 16;         ///< of more stages, replicas move only between neighbours
  static constexpr int kMostStageCuts = 256;    ///< places at which a stage is cut in two
  static constexpr int kMovedShare = 40;        ///< a part of the nodes moves together, at most
  static constexpr int kMostRandomStages = 16;  ///< of a random split

  // SplitPolish.

  static constexpr std::size_t kImproved = 12;     ///< drafts that it begins with
  static constexpr std::size_t kDeviceCounts = 8;  ///< of devices that are tried: all, a half, a quarter, ...
  static constexpr int kShakes = 100;              ///< random moves
  static constexpr double kCoarse = 0.02;          ///< precision of bounds over some of the devices
  static constexpr int kManyNodes = 200;       ///< cuts of as many nodes are rearranged, not moved node by node, ...
  static constexpr int kFewDevices = 64;       ///< ... up to as many devices: on more, a prediction takes too long
  static constexpr int kRandomStarts = 64;     ///< splits among those that are rearranged first
  static constexpr std::size_t kFavoured = 3;  ///< numbers of stages that get half of all turns
  static constexpr double kRearrangeShare = 0.75;   ///< of the time until the random moves begin
  static constexpr int kIdleRearrangements = 5000;  ///< in a row that improve nothing end the beam search

  // EqualShares, equal drafts.

  /// EqualShares::least_busiest: the most segments times stages, with several stages per device; the precision of the
  /// bound, and how often and how fast the weights change.
  static constexpr std::size_t kMostGameSegments = 200'000;
  static constexpr double kGamePrecision = 0.01;
  static constexpr int kGameTurns = 60;
  static constexpr double kGameRate = 0.5;
  static constexpr std::size_t kMostEqualSets = 300;  ///< all are considered; of more, cuts of one order of the layers
  static constexpr std::size_t kMostLineCuts = 1500;  ///< cuts of that order
  static constexpr std::size_t kFewLineCuts = 200;    ///< the same for an estimate, which has about a millisecond
  static constexpr double kEstimateSlower = 2;        ///< factor of the slowest stage's least time, for an estimate
  static constexpr double kLeastSlower = 1 + 1e-9;    ///< the least time itself, and rounding
  /// Limits of the slowest stage's time, as factors of the least; of many sets only the first kMostOfMany.
  static constexpr std::array kSlower{kLeastSlower, 1.03, 1.1, 1.25, 1.5, 1e9};
  static constexpr std::size_t kMostOfMany = 4;
  /// With chunks, what a stage may hold, as factors of an equal share of its device's memory; the largest that fits.
  static constexpr std::array kMemoryShares{1e9, 1.5, 1.25, 1.1, 1.0, 0.9};
  static constexpr int kEveryStageCount = 64;     ///< more stages are tried if they divide the devices, or by doubling
  static constexpr std::size_t kMostShapes = 24;  ///< the best by their estimates; half as many ...
  static constexpr int kManyShapeNodes = 300;     ///< ... for graphs of more nodes
  static constexpr std::size_t kMostSplitsOfShape = 3;   ///< the best of each shape by their bounds, ...
  static constexpr std::size_t kMostSplitsOfChunks = 5;  ///< ... with chunks more, as the bounds tell less
  static constexpr std::size_t kMostOfAKind = 3;     ///< replica counts that divide the microbatches, and powers of two
  static constexpr std::int64_t kMemorySteps = 500;  ///< the least memory is found to this part of it
  static constexpr std::int64_t kMostRatio = 16;     ///< while its bounds differ by more, they come closer by the ratio
  static constexpr int kMemoryTries = 6;     ///< searches for less memory, as plans need more than the bound says
  static constexpr int kMemoryHalvings = 3;  ///< of the difference between what was too little and what fits

  // Candidates of `auto`, the plan with the least memory.

  static constexpr int kEveryAutoCount = 16;             ///< more stages are tried by doubling only
  static constexpr int kMostPipedreamLayers = 4000;      ///< of more, PipeDream's sets of layers take minutes
  static constexpr std::int64_t kMostPairs = 4'000'000;  ///< of cuts in its search: some hundredths of a second
  static constexpr std::size_t kSmallestStarts = 4;      ///< candidates that need the least, from which moves start
  static constexpr int kCheapDevices = 64;               ///< of more, each candidate of `auto` takes long

  // Search over all settings, choices.

  static constexpr double kDraftedShare = 0.6;   ///< predicting drafts of other settings ends
  static constexpr double kRequestShare = 0.5;   ///< most that the request's own settings may take
  static constexpr double kSliceShare = 0.125;   ///< of the time that is left, for one of the settings
  static constexpr Seconds kLeastSlice{0.01};    ///< at least, for one of the settings
  static constexpr Seconds kLeastPartTime{0.1};  ///< for each part of a topology
  static constexpr int kMostImprovedCuts = 16;   ///< places at which improved_plan cuts a stage: each is a prediction
};

}  // namespace stagecraft::partitioner
