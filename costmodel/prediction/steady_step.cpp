#include "costmodel/prediction/steady_step.h"

#include <algorithm>
#include <limits>
#include <map>
#include <vector>

#include "costmodel/index.h"

namespace stagecraft {

Seconds steady_step(const Timeline& timeline) {
  struct Working {
    Seconds begin{std::numeric_limits<double>::max()};
    Seconds end;
  };
  std::vector<Working> ranks(to_index(timeline.ranks));
  for (const Span& span : timeline.spans) {
    Working& rank = ranks[to_index(span.rank)];
    if (!is_receive(span.action.kind)) rank.begin = std::min(rank.begin, span.start);
    rank.end = std::max(rank.end, span.end);
  }
  // A message moves once its receive is posted, which happens after the rank's last action of the step before.
  std::map<Seconds, Seconds> first_arrivals;  // and when the last message before it began to move
  for (const Working& rank : ranks) first_arrivals.emplace(rank.begin, rank.begin);
  for (const Span& span : timeline.spans) {
    if (!is_send(span.action.kind)) continue;
    const auto arrival = first_arrivals.find(span.end);
    if (arrival != first_arrivals.end()) arrival->second = std::min(arrival->second, span.start);
  }
  Seconds out;
  for (const Working& rank : ranks) out = std::max(out, rank.end - first_arrivals.at(rank.begin));
  return out;
}

Seconds steady_step(const Prediction& prediction) {
  if (prediction.timeline.steps.size() != 1) return prediction.iteration;
  const Seconds out = steady_step(prediction.timeline);
  return out > Seconds(0) ? std::min(out, prediction.iteration) : prediction.iteration;
}

}  // namespace stagecraft
