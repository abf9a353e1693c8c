#include "executor/run/loss_report.h"

#include <numeric>

#include "costmodel/index.h"

namespace stagecraft::run {

LossReport::LossReport(bool evaluates, const std::optional<WholePass>& pass) {
  if (!evaluates) return;
  evaluation_.emplace();
  if (pass) left_ = pass->microbatches;
}

double LossReport::add(std::vector<double> losses) {
  if (left_ && *left_ < static_cast<std::int64_t>(losses.size())) losses.resize(to_index(*left_));
  const auto count = static_cast<std::int64_t>(losses.size());
  const double sum = std::accumulate(losses.begin(), losses.end(), 0.0);
  if (evaluation_) {
    sum_ += sum;
    evaluation_->microbatches += count;
    evaluation_->loss = sum_ / static_cast<double>(evaluation_->microbatches);
    if (left_) *left_ -= count;
  }
  return sum / static_cast<double>(count);
}

}  // namespace stagecraft::run
