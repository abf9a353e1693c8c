#include "executor/run/run.h"

#include <ATen/Parallel.h>
#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <stdexcept>

#include "costmodel/errors.h"
#include "costmodel/index.h"
#include "costmodel/prediction/verify.h"
#include "executor/channel/channel_local.h"
#include "executor/device/dtype.h"
#include "executor/launch/rank_group.h"
#include "executor/run/rank_run.h"

namespace stagecraft::run {

void verify_lists(const BoundPlan& plan, std::int64_t steps) {
  // For an asynchronous schedule, the steps up to its steady state cover all cases.
  const int covered = to_int(std::clamp<std::int64_t>(steps, 1, plan.step_window().steps));
  const auto result = verify(plan, plan.action_lists(covered), {.steps = covered});
  if (const auto* infeasible = std::get_if<Infeasible>(&result))
    throw InputError(infeasible->kind, "the plan cannot run: " + infeasible->reason);
}

std::optional<stage::LossScaler> loss_scaler_of(const BoundPlan& plan, const stage::LossScaleOptions& options) {
  if (device::compute_type(plan.plan().dtype) != at::kHalf || !plan.schedule().trains) return std::nullopt;
  if (plan.asynchronous()) {
    throw std::invalid_argument(
        "schedule \"" + plan.plan().schedule +
        "\" is asynchronous and cannot skip a float16 step that overflows; use 1f1b or bfloat16");
  }
  return stage::LossScaler(options);
}

std::optional<WholePass> whole_pass(const Plan& plan, const data::DataSource& data) {
  const std::optional<std::int64_t> samples = data.samples();
  if (!samples || !plan.microbatch_samples) return std::nullopt;
  const std::int64_t microbatches = *samples / *plan.microbatch_samples;
  if (microbatches == 0) {
    throw std::invalid_argument(
        fmt::format("the data has {} samples, fewer than one microbatch of {}", *samples, *plan.microbatch_samples));
  }
  return WholePass{microbatches, (microbatches + plan.microbatches - 1) / plan.microbatches,
                   *samples - microbatches * *plan.microbatch_samples};
}

RunResult run_rank(const BoundModel& bound, const data::DataSource& data, const RunOptions& options, int rank,
                   channel::Channel& channel, const std::function<double()>& seconds_now,
                   const std::function<void(const Progress&)>& progress) {
  if (!bound.plan.plan().microbatch_samples) {
    throw std::invalid_argument(
        "the plan does not state its microbatch; make it from a graph written by stagecraft profile");
  }
  at::set_num_threads(options.threads);
  return RankRun(bound, data, options, rank, channel, seconds_now, progress).run();
}

RunResult run_local(const BoundModel& bound, const data::DataSource& data, const RunOptions& options,
                    std::chrono::milliseconds deadline, const std::function<void(const Progress&)>& progress) {
  verify_lists(bound.plan, options.steps);
  const auto channels = channel::make_local_channels(to_int(bound.plan.ranks().size()), deadline);
  const auto begin = std::chrono::steady_clock::now();
  const auto now = [begin] { return std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count(); };
  std::vector<RunResult> results(channels.size());
  launch::run_as_threads(channels, [&](channel::Channel& channel) {
    results[to_index(channel.rank())] = run_rank(bound, data, options, channel.rank(), channel, now, progress);
  });
  return std::move(results.front());
}

RunResult run_local(const Plan& plan, const model::Model& model, const data::DataSource& data,
                    const RunOptions& options, std::chrono::milliseconds deadline,
                    const std::function<void(const Progress&)>& progress) {
  const BoundPlan bound(plan);
  return run_local(bind_model(bound, model), data, options, deadline, progress);
}

}  // namespace stagecraft::run
