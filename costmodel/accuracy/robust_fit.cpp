#include "costmodel/accuracy/robust_fit.h"

#include <Eigen/Dense>
#include <algorithm>
#include <cmath>
#include <stdexcept>
#include <string>

#include "costmodel/index.h"

namespace stagecraft {
namespace {

constexpr int kMostSteps = 200;
constexpr double kLongestStep = 0.5;  // in log(factor): a long step of a bent function would overshoot
constexpr double kSmall = 1e-12;

bool is_amount(double value) { return std::isfinite(value) && value >= 0; }

void check(std::span<const FitRow> rows, std::span<const FactorPrior> priors, const RobustFitOptions& options) {
  for (std::size_t i = 0; i < rows.size(); ++i) {
    const FitRow& row = rows[i];
    const std::string name = "row " + std::to_string(i) + ": ";
    if (row.parts.size() != priors.size()) {
      throw std::invalid_argument(name + std::to_string(row.parts.size()) + " parts for " +
                                  std::to_string(priors.size()) + " factors");
    }
    double sum = row.fixed;
    bool amounts = is_amount(row.fixed);
    for (const double part : row.parts) {
      amounts = amounts && is_amount(part);
      sum += part;
    }
    if (!amounts || !(sum > 0)) throw std::invalid_argument(name + "parts must not be negative, and some above 0");
    if (!is_amount(row.measured) || row.measured == 0) {
      throw std::invalid_argument(name + "the measured value must be above 0");
    }
  }
  for (const FactorPrior& prior : priors) {
    if (!(prior.log_spread > 0)) throw std::invalid_argument("the spread of a factor must be above 0");
  }
  if (!(options.noise > 0) || !(options.huber > 0)) throw std::invalid_argument("noise and huber must be above 0");
}

}  // namespace

double fitted(const FitRow& row, std::span<const double> factors) {
  double out = row.fixed;
  for (std::size_t k = 0; k < factors.size(); ++k) out += row.parts[k] * factors[k];
  return out;
}

std::vector<double> robust_factors(std::span<const FitRow> rows, std::span<const FactorPrior> priors,
                                   const RobustFitOptions& options) {
  check(rows, priors, options);
  const auto n = static_cast<Eigen::Index>(priors.size());
  Eigen::VectorXd logs = Eigen::VectorXd::Zero(n);
  std::vector<double> factors(priors.size(), 1.0);
  for (int i = 0; i < kMostSteps && n > 0; ++i) {
    Eigen::MatrixXd matrix = Eigen::MatrixXd::Zero(n, n);
    Eigen::VectorXd right = Eigen::VectorXd::Zero(n);
    for (Eigen::Index k = 0; k < n; ++k) {
      const double spread = priors[to_index(k)].log_spread;
      matrix(k, k) = 1 / (spread * spread);
      right[k] = -logs[k] / (spread * spread);
    }
    for (const FitRow& row : rows) {
      const double predicted = fitted(row, factors);
      const double residual = std::log(row.measured / predicted);
      Eigen::VectorXd slope(n);
      for (Eigen::Index k = 0; k < n; ++k) slope[k] = row.parts[to_index(k)] * factors[to_index(k)] / predicted;
      const double limit = options.huber * options.noise;
      const double weight =
          std::min(1.0, limit / std::max(std::abs(residual), limit)) / (options.noise * options.noise);
      matrix += weight * slope * slope.transpose();
      right += weight * residual * slope;
    }
    Eigen::VectorXd step = matrix.ldlt().solve(right);
    const double longest = step.cwiseAbs().maxCoeff();
    if (longest > kLongestStep) step *= kLongestStep / longest;
    logs += step;
    for (Eigen::Index k = 0; k < n; ++k) factors[to_index(k)] = std::exp(logs[k]);
    if (longest < kSmall) break;
  }
  return factors;
}

}  // namespace stagecraft
