#include "executor/run/run_comparison.h"

#include <fmt/format.h>

#include <stdexcept>
#include <utility>
#include <vector>

#include "costmodel/index.h"

namespace stagecraft::run {

RunComparison::RunComparison(const BoundModel& bound, const data::DataSource& data, const RunOptions& options) {
  const Plan& plan = bound.plan.plan();
  const bool compares = options.check || !options.expected.empty();
  if (compares && (!bound.plan.schedule().trains || bound.plan.asynchronous())) {
    throw std::invalid_argument("--check and --expect compare the gradients of a step; schedule \"" + plan.schedule +
                                "\" has none to compare");
  }
  if (options.check) reference_.emplace(bound, data, options.optimizer, options.seed, options.device);
  if (options.expected.empty()) return;
  record_.emplace(options.expected);
  record_->check_fits(plan, options.steps, options.optimizer, options.seed);
  check_.with = options.expected;
  check_.reasons = other_orders(bound);
  if (const std::string other = record_->other_kernels(options.threads); !other.empty()) {
    check_.reasons.push_back(other);
    check_.tolerance = kOtherKernelsTolerance;
    check_.other_kernels = true;
  }
}

void RunComparison::compare_step(std::int64_t step, const StageWorker& worker, const stage::MicrobatchLosses& losses) {
  if (record_) {
    record_->compare_gradients(step, worker.parameters(), check_);
    record_->compare_losses(step, losses, check_);
    return;
  }
  reference_->compute(step);
  if (!reference_->overflow()) compare_gradients(step, worker);
  for (const auto& [microbatch, loss] : losses) compare_loss(loss, reference_->losses()[to_index(microbatch)], check_);
  reference_->update();
}

void RunComparison::compare_gradients(std::int64_t step, const StageWorker& worker) {
  std::vector<ComparedTensor> compared;
  for (const stage::Parameter& parameter : worker.parameters()) {
    compared.push_back({fmt::format("gradient of \"{}\" in step {}", parameter.name, step + 1), parameter.layer,
                        parameter.value.grad(), reference_->gradient(parameter.layer, parameter.name)});
  }
  compare_tensors(compared, check_);
}

void RunComparison::compare_end(StageWorker& worker) {
  if (!record_) return;
  worker.visit_stages([&](int, stage::StageProgram& program, stage::Optimizer&) {
    record_->compare_end(program.parameters(), program.buffers(), check_);
  });
}

}  // namespace stagecraft::run
