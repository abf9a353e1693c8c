#include "executor/run/run_report.h"

#include <fmt/format.h>

#include <algorithm>
#include <iostream>

#include "costmodel/index.h"
#include "costmodel/schedule.h"
#include "costmodel/units_text.h"

namespace stagecraft::run {

std::string speed_text(std::int64_t samples, Seconds measured, std::optional<Seconds> predicted) {
  const double rate = static_cast<double>(samples) / measured.value;
  std::string out = fmt::format("{:.{}f} samples/s, {} per step", rate, rate < 100 ? 1 : 0, format_seconds(measured));
  if (predicted && predicted->value > 0) {
    out += fmt::format(" (predicted {}, {:+.0f} %)", format_seconds(*predicted),
                       100 * (measured.value / predicted->value - 1));
  }
  return out;
}

StepReporter::StepReporter(const Plan& plan)
    : samples_(plan.microbatch_samples.value_or(0) * plan.microbatches), predicted_(plan.iteration) {}

void StepReporter::operator()(const Progress& progress) {
  std::string text = fmt::format("step {}/{} loss {:.4f} {}", progress.step + 1, progress.steps, progress.loss,
                                 speed_text(samples_, progress.step_time, predicted_));
  if (progress.loss_scale) text += fmt::format(", loss scale {:g}", *progress.loss_scale);
  line_.show(text);
  const std::int64_t every = std::max<std::int64_t>(1, progress.steps / 10);
  if (!line_.visible() && ((progress.step + 1) % every == 0 || progress.step == 0)) std::cerr << text + "\n";
}

std::string closing_text(const Measurement& measurement, std::optional<Seconds> predicted) {
  const std::size_t skip = std::min<std::size_t>(2, measurement.timeline.steps.size() - 1);
  return fmt::format("loss {:.4f} to {:.4f} in {} steps; {}", measurement.losses.front(), measurement.losses.back(),
                     measurement.losses.size(),
                     speed_text(measurement.microbatch_samples.value_or(0) * measurement.microbatches,
                                step_time(measurement.timeline, skip), predicted));
}

std::string evaluation_text(const Evaluation& evaluation, std::int64_t microbatch_samples,
                            const std::optional<WholePass>& pass) {
  const std::int64_t samples = evaluation.microbatches * microbatch_samples;
  std::string out = fmt::format("loss {:.6g} over {}", evaluation.loss, samples);
  if (!pass) return out + " samples";
  out += fmt::format(" of {} samples", pass->microbatches * microbatch_samples + pass->samples_left);
  if (evaluation.microbatches == pass->microbatches && pass->samples_left > 0)
    out += fmt::format("; {} left over, too few for a microbatch of {}", pass->samples_left, microbatch_samples);
  return out;
}

std::string roles_text(const BoundPlan& plan) {
  std::string out;
  const std::vector<RankRole>& roles = plan.ranks();
  const auto lists = plan.action_lists();
  for (std::size_t rank = 0; rank < roles.size(); ++rank) {
    const int s = roles[rank].stages.front();
    const auto& layers = plan.plan().stages[to_index(s)].layers;
    out += fmt::format("rank {}: device {}, stage {}, replica {}, {} layers {} to {}, {} actions per step\n", rank,
                       roles[rank].device, s, roles[rank].replica, layers.size(), layers.front(), layers.back(),
                       lists[rank].size());
  }
  return out;
}

}  // namespace stagecraft::run
