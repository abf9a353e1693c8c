#include "costmodel/timeline.h"

#include <algorithm>
#include <array>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "costmodel/errors.h"

namespace stagecraft {
namespace {

/// In the order of MemoryPart.
constexpr std::array<const char*, kMemoryParts> kWords{
    "activations",    "communication", "frozen",     "gradients", "inputs",    "kept gradients", "libraries",
    "older versions", "optimizer",     "parameters", "receiving", "reduction", "sending",        "workspace"};

}  // namespace

const char* to_string(MemoryPart part) { return kWords[static_cast<std::size_t>(part)]; }

MemoryPart memory_part(const std::string& word) {
  for (std::size_t i = 0; i < kWords.size(); ++i) {
    if (word == kWords[i]) return static_cast<MemoryPart>(i);
  }
  throw InputError(ErrorKind::UnknownName, unknown_name("part of memory", word, {kWords.begin(), kWords.end()}));
}

double median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  const std::size_t n = values.size();
  return n % 2 ? values[n / 2] : (values[n / 2 - 1] + values[n / 2]) / 2;
}

Seconds step_time(const Timeline& timeline, std::size_t first) {
  std::vector<double> times;
  for (std::size_t i = first; i < timeline.steps.size(); ++i) {
    times.push_back((timeline.steps[i].end - timeline.steps[i].start).value);
  }
  if (times.empty()) {
    throw std::invalid_argument("no steps are left: the timeline has " + std::to_string(timeline.steps.size()) +
                                " and the first " + std::to_string(first) + " are skipped");
  }
  return Seconds(median(std::move(times)));
}

std::size_t warm_up_steps(const Timeline& timeline) {
  constexpr std::size_t kWarmUp = 2;
  return timeline.steps.empty() ? 0 : std::min(kWarmUp, timeline.steps.size() - 1);
}

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
