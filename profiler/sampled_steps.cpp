#include "profiler/sampled_steps.h"

#include <string>

#include "costmodel/index.h"

namespace stagecraft::profiler {
namespace {

/// Device work longer than the unwatched step by more than this is not noise.
constexpr double kMostWorkOverPlain = 0.01;

std::optional<LayerShare>& share_in(Layer& layer, Phase phase) {
  if (phase == Phase::Forward) return layer.forward_share;
  return phase == Phase::Backward ? layer.backward_share : layer.update_share;
}

}  // namespace

void LayerSamples::add(const StepShares& step) {
  std::int64_t sum = 0;
  for (std::size_t layer = 0; layer < forward.size(); ++layer) {
    const auto share = [&](Phase phase) {
      const std::int64_t out = step.share_of({static_cast<std::int64_t>(layer), phase});
      sum += out;
      return in_seconds(out);
    };
    forward[layer].push_back(share(Phase::Forward));
    backward[layer].push_back(share(Phase::Backward));
    const auto part = step.parts.find({static_cast<std::int64_t>(layer), Phase::Backward});
    accumulation[layer].push_back(
        part == step.parts.end() ? 0 : in_seconds(part->second.accumulating_ns + part->second.accumulating_gap_ns));
    update[layer].push_back(share(Phase::Optimizer));
  }
  sums.push_back(in_seconds(sum));
}

std::vector<std::vector<double>> LayerSamples::parts() const {
  std::vector<std::vector<double>> out = forward;
  out.insert(out.end(), backward.begin(), backward.end());
  return out;
}

void divide_update(StepShares& step, std::span<const Layer> layers) {
  const auto whole = step.parts.extract({0, Phase::Optimizer});
  if (whole.empty()) return;
  std::int64_t all = 0;
  for (const Layer& layer : layers) all += layer.parameters.value_or(0);
  PartTime given;
  std::int64_t sum = 0;
  for (std::size_t i = 0; i < layers.size(); ++i) {
    const std::int64_t parameters = layers[i].parameters.value_or(0);
    if (parameters == 0) continue;
    sum += parameters;
    const double part = static_cast<double>(sum) / static_cast<double>(all);
    const auto up_to = [&](std::int64_t PartTime::* member) {
      const std::int64_t value = whole.mapped().*member;
      return sum == all ? value : static_cast<std::int64_t>(part * static_cast<double>(value));
    };
    PartTime& time = step.parts[{static_cast<std::int64_t>(i), Phase::Optimizer}];
    for (const auto member : {&PartTime::busy_ns, &PartTime::active_ns, &PartTime::gap_ns}) {
      time.*member = up_to(member) - given.*member;
      given.*member += time.*member;
    }
    time.activities = whole.mapped().activities;
  }
}

void add_shares(std::span<Layer> layers, ProfileQuality& quality, const StepShares& step) {
  ++quality.steps;
  quality.watched_ns += step.end_ns - step.begin_ns;
  quality.data_wait_ns += step.data_wait_ns();
  quality.unattributed_ns += step.unattributed_ns();
  if (quality.debiased) {
    quality.host_wait_ns += step.gaps.host_wait_ns;
    quality.kernel_wait_ns += step.gaps.kernel_wait_ns;
  }
  for (const auto& [part, time] : step.parts) {
    if (part.phase == Phase::None || part.phase == Phase::Data) continue;
    std::optional<LayerShare>& share = share_in(layers[to_index(part.layer)], part.phase);
    if (!share) share = LayerShare{};
    share->busy_ns += time.busy_ns;
    share->share_ns += time.share_ns();
    share->activities += time.activities;
  }
}

void copy_trace_quality(ProfileQuality& quality, const TraceQuality& trace) {
  quality.reasons = distrust(trace);
  quality.work = trace.activities;
  quality.work_attributed = trace.attributed;
  quality.work_ns = trace.busy_ns;
  quality.work_attributed_ns = trace.attributed_ns;
  quality.dropped = trace.dropped;
  quality.bad_timestamps = trace.zero_times + trace.reversed_times + trace.before_launch;
  quality.disagreements = trace.disagreements;
}

void judge(ProfileQuality& quality, std::int64_t unmapped, double work_over_plain) {
  if (unmapped > 0)
    quality.reasons.push_back(std::to_string(unmapped) + " backward nodes could not be assigned to a layer");
  if (work_over_plain > kMostWorkOverPlain) {
    quality.reasons.push_back("the device is busy " + std::to_string(work_over_plain * 100) +
                              " % longer in a profiled step than an unprofiled step lasts: tracing slows it down");
  }
  quality.trusted = quality.reasons.empty();
}

}  // namespace stagecraft::profiler
