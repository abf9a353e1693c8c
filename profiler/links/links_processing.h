#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <vector>

#include "costmodel/topology.h"
#include "executor/channel/channel.h"
#include "profiler/links/links.h"

namespace stagecraft::profiler {

/// Messages from rank 0 to rank 1, one at a time, while both ends compute.
struct ProcessingTask {
  Bytes bytes;  ///< of a message, a multiple of a float's 4
  std::int64_t messages = 1;
  Seconds transfer = {};  ///< about the time of a message; both ends compute for longer
};

/// The closest curve to `points` that does not fall, by least squares with a weight for each point. Source: pool
/// adjacent violators, Barlow, Bartholomew, Bremner and Brunk, Statistical Inference under Order Restrictions, Wiley
/// 1972.
[[nodiscard]] Curve without_falls(std::vector<CurvePoint> points, const std::vector<double>& weights);

/// Rank 1's part of a task, after rank 0 has told it of the task.
void receive_for_processing(channel::Channel& channel, const ProcessingTask& task);

/// The part of a rank from 2 on: it computes for about as long.
void compute_beside(const ProcessingTask& task);

/// Processor time of a message between ranks 0 and 1, which must both be separate processes; absent if they are threads
/// of one process. `one_way` has the times of transfers, `tell` gives the other ranks a task, which they must carry
/// out. A rank's own thread handles messages if it takes more than half of what the largest message takes its receiver.
/// All ranks compute meanwhile, as in a run; what they compute does not count. A rank asks whether a send has ended, or
/// waits for a message, only when that should be the case, so that nobody polls. The curves never fall, because by
/// chance a few messages of any size are slow. Takes about two seconds. Call on rank 0.
[[nodiscard]] std::optional<MessageProcessing> measure_processing(
    channel::Channel& channel, const LinkCurve& one_way, const std::function<void(const ProcessingTask&)>& tell);

}  // namespace stagecraft::profiler
