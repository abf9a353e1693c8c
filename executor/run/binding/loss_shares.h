#pragma once

#include <cstdint>
#include <vector>

#include "executor/data/data_source.h"
#include "executor/model/model.h"

namespace stagecraft::run {

/// Whether the losses of microbatches may count differently in the loss of their batch.
[[nodiscard]] bool has_loss_shares(const model::Model& model);

/// For each microbatch of a step, what to multiply its loss by so that the mean of the products is the loss of the
/// whole batch: 1 for a mean over samples, the number of microbatches for a sum, and 0 for a microbatch whose loss was
/// divided by 0. All are 1 if that of the whole batch is. They follow from the data alone, so every rank gets the same.
[[nodiscard]] std::vector<double> loss_shares(const model::Model& model, const data::DataSource& data,
                                              std::int64_t step, int microbatches, std::int64_t samples);

/// The loss of microbatches together; of a loss across samples, the mean of theirs.
class JointLoss {
 public:
  JointLoss(const model::Model& model, const data::DataSource& data, std::int64_t samples)
      : model_(model), data_(data), samples_(samples) {}
  /// Adds the loss of this microbatch of a step.
  void add(double loss, std::int64_t step, int microbatch, int microbatches);
  /// NaN if nothing counts.
  [[nodiscard]] double value() const;

 private:
  const model::Model& model_;
  const data::DataSource& data_;
  std::int64_t samples_;
  double sum_ = 0;
  double count_ = 0;
};

}  // namespace stagecraft::run
