#pragma once

#include <map>
#include <string>
#include <vector>

#include "costmodel/schedule.h"
#include "costmodel/units.h"

namespace stagecraft {

/// What happened when on one rank, predicted or measured. Times count from the start of the timeline.
struct Span {
  int rank = 0;
  int step = 0;
  Action action;
  Seconds start;
  Seconds end;
  friend bool operator==(const Span&, const Span&) = default;
};

/// Peak bytes of one rank by part; `total` is the peak as a whole and the parts add up to it in a prediction. A
/// measurement fills what it can tell apart.
struct RankMemory {
  int rank = 0;
  Bytes total;
  std::map<std::string, Bytes> parts;
  friend bool operator==(const RankMemory&, const RankMemory&) = default;
};

/// Time that a step took, from the first action's start on any rank to the last one's end.
struct StepTime {
  int step = 0;
  Seconds start;
  Seconds end;
  friend bool operator==(const StepTime&, const StepTime&) = default;
};

/// One type for prediction and measurement.
struct Timeline {
  int ranks = 0;
  std::vector<int> stage_of_rank;
  std::vector<StepTime> steps;
  std::vector<Span> spans;
  std::vector<RankMemory> memory;
  friend bool operator==(const Timeline&, const Timeline&) = default;
};

}  // namespace stagecraft
