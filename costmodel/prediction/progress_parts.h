#pragma once

#include "costmodel/prediction/step_replay.h"

namespace stagecraft {

/// Combined progress of several predictions, weighted by their expected time.
class ProgressParts {
 public:
  /// `options`: of all predictions, with the progress of the whole; must outlive this object. `all`: the sum of their
  /// weights.
  ProgressParts(const PredictOptions& options, double all) : options_(options), left_(all) {}

  /// The options of the next prediction. Tells the progress so far.
  [[nodiscard]] PredictOptions next(double weight = 1);
  /// Says how much is left, where that was not known at first.
  void set_left(double left) { left_ = left; }

 private:
  const PredictOptions& options_;
  double left_;      ///< weights of the predictions to come
  double done_ = 0;  ///< share of the whole
};

}  // namespace stagecraft
