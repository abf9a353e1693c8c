#include "executor/run/run.h"

#include <ATen/Parallel.h>
#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <stdexcept>

#include "costmodel/verify.h"
#include "executor/channel/channel_local.h"
#include "executor/launch/rank_group.h"
#include "executor/run/planned_layers.h"
#include "executor/run/rank_run.h"

namespace stagecraft {

void verify_lists(const Plan& plan, const Model& model, std::int64_t steps) {
  // Of an asynchronous schedule's steps those that reach its steady state show all that can happen.
  const int covered = static_cast<int>(std::clamp<std::int64_t>(steps, 1, step_window(plan).steps));
  const std::vector<std::vector<int>> layers = layers_of_stages(plan, model);
  check_fits(plan, model, layers);
  const auto tied = tied_parameters(model, layers);
  const auto result =
      verify(plan, planned_actions(plan, tied, covered), {.steps = covered, .reduce_groups = tied_groups(plan, tied)});
  if (const auto* infeasible = std::get_if<Infeasible>(&result))
    throw std::invalid_argument("the plan cannot run: " + infeasible->reason);
}

std::optional<WholePass> whole_pass(const Plan& plan, const DataSource& data) {
  const std::optional<std::int64_t> samples = data.samples();
  if (!samples || !plan.microbatch_samples) return std::nullopt;
  const std::int64_t microbatches = *samples / *plan.microbatch_samples;
  if (microbatches == 0) {
    throw std::invalid_argument(fmt::format("the data hold {} samples, a microbatch of the plan takes {}", *samples,
                                            *plan.microbatch_samples));
  }
  return WholePass{microbatches, (microbatches + plan.microbatches - 1) / plan.microbatches,
                   *samples - microbatches * *plan.microbatch_samples};
}

RunResult run_rank(const Plan& plan, const Model& model, const DataSource& data, const RunOptions& options, int rank,
                   Channel& channel, const std::function<double()>& seconds_now,
                   const std::function<void(const Progress&)>& progress) {
  if (!plan.microbatch_samples) {
    throw std::invalid_argument(
        "the plan does not say the samples of a microbatch; plan from a graph that stagecraft profile wrote");
  }
  at::set_num_threads(options.threads);
  return RankRun(plan, model, data, options, rank, channel, seconds_now, progress).run();
}

RunResult run_local(const Plan& plan, const Model& model, const DataSource& data, const RunOptions& options,
                    std::chrono::milliseconds deadline, const std::function<void(const Progress&)>& progress) {
  verify_lists(plan, model, options.steps);
  const auto channels = make_local_channels(static_cast<int>(ranks(plan).size()), deadline);
  const auto begin = std::chrono::steady_clock::now();
  const auto now = [begin] { return std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count(); };
  std::vector<RunResult> results(channels.size());
  run_as_threads(channels, [&](Channel& channel) {
    results[static_cast<std::size_t>(channel.rank())] =
        run_rank(plan, model, data, options, channel.rank(), channel, now, progress);
  });
  return std::move(results.front());
}

}  // namespace stagecraft
