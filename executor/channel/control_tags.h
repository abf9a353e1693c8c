#pragma once

#include <numeric>
#include <vector>

#include "costmodel/index.h"
#include "executor/channel/channel.h"

// Tags of the runtime's exchanges, and which ranks take part in most of them.

namespace stagecraft::channel {

inline constexpr int kLossTag = Channel::kControlTag + 1;         ///< microbatch losses, to rank 0
inline constexpr int kLengthTag = Channel::kControlTag + 2;       ///< of a rank's result
inline constexpr int kResultTag = Channel::kControlTag + 3;       ///< a rank's result, to rank 0
inline constexpr int kNormTag = Channel::kControlTag + 4;         ///< gradient norms
inline constexpr int kOverflowTag = Channel::kControlTag + 5;     ///< whether a gradient of any rank overflows
inline constexpr int kStatisticsTag = Channel::kControlTag + 6;   ///< batch norm's statistics, among a stage's replicas
inline constexpr int kValidationTag = Channel::kControlTag + 7;   ///< results on validation data, to rank 0
inline constexpr int kStopTag = Channel::kControlTag + 8;         ///< whether any rank is asked to stop
inline constexpr int kReportTag = Channel::kControlTag + 9;       ///< what was written for a checkpoint, to rank 0
inline constexpr int kFirstStepTag = Channel::kControlTag + 10;   ///< which checkpoint a run resumes, from rank 0
inline constexpr int kProofTag = Channel::kControlTag + 11;       ///< proof that a peer knows the run's secret
inline constexpr int kTimesTag = Channel::kControlTag + 12;       ///< processor times, to rank 0
inline constexpr int kNextResultTag = Channel::kControlTag + 13;  ///< steps until the next results, from rank 0
inline constexpr int kPlateauTag = Channel::kControlTag + 14;     ///< a validation's loss, from rank 0
inline constexpr int kBlocksTag = Channel::kControlTag + 15;      ///< squares of the gradients that each rank updates
inline constexpr int kTiesTag = Channel::kControlTag + 32;        ///< and up: tied parameters
inline constexpr int kBucketsTag = kTiesTag + (1 << 14);          ///< and up: see StageTags
inline constexpr int kMostBuckets = 1 << 14;                      ///< of all stages of a rank
inline constexpr int kBarrierTag = Channel::kMostTags - 1;

/// The tags of the collectives among a stage's replicas: those of several stages of a rank can go on at once.
struct StageTags {
  int place = 0;   ///< of the stage among those of its ranks
  int stages = 1;  ///< of each of its ranks
  /// Of a bucket of gradients or parameters; also, for the bucket after the last, of the counts of gradients.
  [[nodiscard]] int bucket(int number) const { return kBucketsTag + number * stages + place; }
};

/// Every rank of `channel`, ascending.
[[nodiscard]] inline std::vector<int> all_ranks(const Channel& channel) {
  std::vector<int> out(to_index(channel.ranks()));
  std::iota(out.begin(), out.end(), 0);
  return out;
}

}  // namespace stagecraft::channel
