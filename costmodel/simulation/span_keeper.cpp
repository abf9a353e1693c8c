#include "costmodel/simulation/span_keeper.h"

namespace stagecraft {

bool SpanKeeper::keeps(int place) const { return place < kEdge || place > newest_ - kEdge || place % every_ == 0; }

void SpanKeeper::begin(int place) {
  newest_ = place;
  if (place / every_ >= kMiddle) every_ *= 2;
  std::erase_if(spans_, [this](const Span& span) { return !keeps(span.step - first_step_); });
}

void SpanKeeper::add(const Span& span) {
  const int place = span.step - first_step_;
  while (newest_ < place) begin(newest_ + 1);
  if (keeps(place)) spans_.push_back(span);
}

}  // namespace stagecraft
