#include "costmodel/prediction/progress_parts.h"

#include <algorithm>

namespace stagecraft {

PredictOptions ProgressParts::next(double weight) {
  PredictOptions out = options_;
  if (!options_.progress) return out;
  const double begin = done_;
  const double length = (1 - begin) * (weight / std::max(weight, left_));
  options_.progress(begin);
  out.progress = [&progress = options_.progress, begin, length](double done) { progress(begin + length * done); };
  done_ = begin + length;
  left_ -= weight;
  return out;
}

}  // namespace stagecraft
