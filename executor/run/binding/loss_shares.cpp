#include "executor/run/binding/loss_shares.h"

#include <numeric>

#include "costmodel/index.h"

namespace stagecraft::run {
namespace {

double count_of(const model::LossWeight& weight, const data::DataSource& data, std::int64_t step, int microbatch,
                int microbatches, std::int64_t samples) {
  return weight.count(data.batch(step, microbatch, microbatches, samples, weight.sources)).item<double>();
}

}  // namespace

bool has_loss_shares(const model::Model& model) { return model.loss_kind == model::LossKind::Sum || model.loss_weight; }

std::vector<double> loss_shares(const model::Model& model, const data::DataSource& data, std::int64_t step,
                                int microbatches, std::int64_t samples) {
  const double all = microbatches;
  std::vector<double> out(to_index(microbatches), model.loss_kind == model::LossKind::Sum ? all : 1);
  if (!model.loss_weight) return out;
  const model::LossWeight& weight = *model.loss_weight;
  for (int m = 0; m < microbatches; ++m) out[to_index(m)] = count_of(weight, data, step, m, microbatches, samples);
  const double divisor = weight.divisor(std::accumulate(out.begin(), out.end(), 0.0));
  for (double& share : out) share = divisor == 0 ? 1 : weight.divisor(share) * all / divisor;
  return out;
}

void JointLoss::add(double loss, std::int64_t step, int microbatch, int microbatches) {
  if (!model_.loss_weight) {
    sum_ += loss;
    ++count_;
    return;
  }
  const double count = count_of(*model_.loss_weight, data_, step, microbatch, microbatches, samples_);
  if (const double divisor = model_.loss_weight->divisor(count); divisor != 0) sum_ += loss * divisor;
  count_ += count;
}

double JointLoss::value() const {
  if (model_.loss_kind == model::LossKind::Sum) return sum_;
  return sum_ / (model_.loss_weight ? model_.loss_weight->divisor(count_) : count_);
}

}  // namespace stagecraft::run
