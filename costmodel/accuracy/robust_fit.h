#pragma once

#include <span>
#include <vector>

namespace stagecraft {

/// One measured quantity as a sum of parts: fixed + sum over k of parts[k] * factor[k], all in one unit, none negative.
struct FitRow {
  double fixed = 0;
  std::vector<double> parts;
  double measured = 0;  ///< above 0
};

/// Shrinkage of one factor: the standard deviation of its logarithm that is expected without any row. Above 0.
struct FactorPrior {
  double log_spread = 1;
};

struct RobustFitOptions {
  double noise = 0.03;   ///< standard deviation of log(measured) around the truth
  double huber = 1.345;  ///< residuals beyond this many `noise` count linearly: 95 % efficient if residuals are normal
};

/// The factors, one for each prior, all above 0, that minimise
///   sum over rows of huber(log(measured / predicted) / noise) + sum over k of (log(factor[k]) / log_spread[k])^2 / 2.
/// A factor that no row depends on stays 1. Gauss-Newton in log(factor) with reweighting.
/// Throws std::invalid_argument for a row whose number of parts differs from that of the priors, with a prediction of
/// 0, a negative or infinite number, or a measured value that is not above 0; for a prior, noise or huber that is not
/// above 0.
/// Source: Huber, Robust Statistics, 1981, chapter 7.
[[nodiscard]] std::vector<double> robust_factors(std::span<const FitRow> rows, std::span<const FactorPrior> priors,
                                                 const RobustFitOptions& options = {});

/// The row's sum with these factors. Precondition: as many factors as parts.
[[nodiscard]] double fitted(const FitRow& row, std::span<const double> factors);

}  // namespace stagecraft
