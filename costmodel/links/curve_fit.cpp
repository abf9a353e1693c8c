#include "costmodel/links/curve_fit.h"

#include <fmt/format.h>
#include <Eigen/Dense>

#include <algorithm>
#include <cmath>
#include <iterator>
#include <limits>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "costmodel/index.h"

namespace stagecraft {
namespace {

constexpr int kMostSegments = 3;
constexpr int kMostPlaces = 24;
constexpr double kLeastSpread = 0.01;
constexpr double kNoDifference = 1e-4;

struct Data {
  Eigen::ArrayXd bytes;
  Eigen::ArrayXd time;
  Eigen::ArrayXd weight;  ///< with a mean of 1
};

/// Eigen::VectorXd of a latency and one slope per segment, and the mean weighted square of the log error.
struct FitCandidate {
  std::vector<double> places;  ///< where the segments after the first begin
  Eigen::VectorXd coefficients;
  double error = std::numeric_limits<double>::infinity();
};

Data data_of(const std::vector<FitPoint>& points) {
  const auto n = static_cast<Eigen::Index>(points.size());
  Data out{Eigen::ArrayXd(n), Eigen::ArrayXd(n), Eigen::ArrayXd::Ones(n)};
  const bool weighted = std::all_of(points.begin(), points.end(), [](const FitPoint& p) { return p.spread.value > 0; });
  for (Eigen::Index i = 0; i < n; ++i) {
    const FitPoint& point = points[to_index(i)];
    out.bytes[i] = static_cast<double>(point.bytes.value);
    out.time[i] = point.time.value;
    if (weighted) out.weight[i] = std::pow(std::max(point.spread / point.time, kLeastSpread), -2);
  }
  out.weight /= out.weight.mean();
  return out;
}

/// Column 0 is 1, column s the bytes that lie in segment s - 1: coefficients of at least 0 give a time that never
/// falls.
Eigen::MatrixXd columns_of(const Eigen::ArrayXd& bytes, const std::vector<double>& places) {
  Eigen::MatrixXd out(bytes.size(), static_cast<Eigen::Index>(places.size()) + 2);
  out.col(0).setOnes();
  for (std::size_t s = 0; s <= places.size(); ++s) {
    const double begin = s == 0 ? 0 : places[s - 1];
    const double end = s == places.size() ? std::numeric_limits<double>::infinity() : places[s];
    out.col(static_cast<Eigen::Index>(s) + 1) = bytes.min(end).max(begin) - begin;
  }
  return out;
}

/// The least squares of columns * x - wanted with no x below 0. Tries every set of columns that stay above 0, as there
/// are few.
Eigen::VectorXd not_negative_least_squares(const Eigen::MatrixXd& columns, const Eigen::VectorXd& wanted) {
  const Eigen::Index n = columns.cols();
  Eigen::VectorXd norms = columns.colwise().norm().transpose();
  for (Eigen::Index i = 0; i < n; ++i) norms[i] = norms[i] > 0 ? norms[i] : 1;
  const Eigen::MatrixXd scaled = columns * norms.cwiseInverse().asDiagonal();
  const Eigen::MatrixXd product = scaled.transpose() * scaled;
  const Eigen::VectorXd right = scaled.transpose() * wanted;
  Eigen::VectorXd best = Eigen::VectorXd::Zero(n);
  double least = 0;  // of x'Ax - 2x'b, which is 0 without any column
  for (unsigned set = (1U << n) - 1; set > 0; --set) {
    std::vector<Eigen::Index> used;
    for (Eigen::Index i = 0; i < n; ++i) {
      if ((set >> i & 1U) != 0) used.push_back(i);
    }
    const Eigen::MatrixXd part = product(used, used);
    const Eigen::VectorXd part_right = right(used);
    const Eigen::VectorXd x = part.ldlt().solve(part_right);
    if (!x.allFinite() || x.minCoeff() < 0) continue;
    const double value = -x.dot(part_right);
    if (value >= least) continue;
    least = value;
    best.setZero();
    for (std::size_t i = 0; i < used.size(); ++i) best[used[i]] = x[static_cast<Eigen::Index>(i)];
    if (used.size() == to_index(n)) break;  // the unconstrained optimum is feasible
  }
  return best.cwiseQuotient(norms);
}

/// Gauss-Newton on the log error: log f is linear in f near the last f, and the first one is the measurement. Erratic
/// times may give a round an f of 0; the constant, the mean of log t, is then kept until a round does better.
FitCandidate fitted(const Data& data, std::vector<double> places) {
  FitCandidate out;
  const Eigen::MatrixXd columns = columns_of(data.bytes, places);
  const Eigen::ArrayXd logs = data.time.log();
  const double mean = (data.weight * logs).mean();
  out.coefficients = Eigen::VectorXd::Zero(columns.cols());
  out.coefficients[0] = std::exp(mean);
  out.error = (data.weight * (logs - mean).square()).mean();
  Eigen::ArrayXd around = data.time;
  for (int round = 0; round < 4; ++round) {
    const Eigen::ArrayXd scale = data.weight.sqrt() / around;
    const Eigen::ArrayXd wanted = around * (1 + (data.time / around).log());
    const Eigen::VectorXd x =
        not_negative_least_squares(scale.matrix().asDiagonal() * columns, (scale * wanted).matrix());
    const Eigen::ArrayXd fit = (columns * x).array();
    const double error = (data.weight * (fit / data.time).log().square()).mean();
    if (error < out.error) {
      out.coefficients = x;
      out.error = error;
    }
    around = fit.max(data.time / 100);
  }
  out.places = std::move(places);
  return out;
}

std::vector<double> candidate_places(const Eigen::ArrayXd& bytes) {
  std::vector<double> all;
  for (Eigen::Index i = 1; i + 1 < bytes.size(); ++i) {
    all.push_back(std::round(std::sqrt(std::max(bytes[i - 1], 1.0) * bytes[i])));
    all.push_back(bytes[i]);
  }
  if (bytes.size() > 2) all.push_back(std::round(std::sqrt(bytes[bytes.size() - 2] * bytes[bytes.size() - 1])));
  all.erase(std::unique(all.begin(), all.end()), all.end());
  return all;
}

/// At most kMostPlaces of `all`, evenly spaced by ratio, unlike the messages of a dense linear sweep.
std::vector<double> sparse(const std::vector<double>& all) {
  if (all.size() <= kMostPlaces) return all;
  std::vector<double> out;
  const double step = std::log(all.back() / all.front()) / (kMostPlaces - 1);
  for (int i = 0; i < kMostPlaces; ++i) {
    const auto at = std::lower_bound(all.begin(), all.end() - 1, all.front() * std::exp(step * i) * (1 - 1e-9));
    if (out.empty() || *at > out.back()) out.push_back(*at);
  }
  return out;
}

/// Whether each segment has at least two points, including its ends: a single one determines no slope.
bool holds_enough(const Eigen::ArrayXd& bytes, const std::vector<double>& places) {
  for (std::size_t s = 0; s <= places.size(); ++s) {
    const double begin = s == 0 ? 0 : places[s - 1];
    const double end = s == places.size() ? std::numeric_limits<double>::infinity() : places[s];
    if ((bytes >= begin && bytes <= end).count() < 2) return false;
  }
  return true;
}

/// The best fit with this many segments: tries every choice among some places, then moves one place at a time to any
/// between its neighbours.
FitCandidate best_of(const Data& data, const std::vector<double>& all, int segments) {
  if (segments == 1) return fitted(data, {});
  FitCandidate best;
  const auto consider = [&](std::vector<double> chosen) {
    if (!holds_enough(data.bytes, chosen)) return;
    FitCandidate candidate = fitted(data, std::move(chosen));
    if (candidate.error < best.error) best = std::move(candidate);
  };
  const std::vector<double> places = sparse(all);
  for (std::size_t a = 0; a < places.size(); ++a) {
    if (segments == 2) consider({places[a]});
    for (std::size_t b = a + 1; segments == 3 && b < places.size(); ++b) consider({places[a], places[b]});
  }
  if (places.size() == all.size()) return best;
  for (int round = 0; round < 2; ++round) {
    for (std::size_t s = 0; s < best.places.size(); ++s) {
      const auto near = std::lower_bound(places.begin(), places.end(), best.places[s]);
      double low = near == places.begin() ? 0 : *(near - 1);
      double high = near + 1 >= places.end() ? places.back() : *(near + 1);
      if (s > 0) low = std::max(low, best.places[s - 1]);
      if (s + 1 < best.places.size()) high = std::min(high, best.places[s + 1]);
      std::vector<double> chosen = best.places;
      for (const double place : all) {
        if (place <= low || place >= high) continue;
        chosen[s] = place;
        consider(chosen);
      }
    }
  }
  return best;
}

CurveFit fit_without_holding_out(const std::vector<FitPoint>& points) {
  const Data data = data_of(points);
  const double n = static_cast<double>(points.size());
  const std::vector<double> places = candidate_places(data.bytes);
  CurveFit out;
  FitCandidate chosen;
  for (int segments = 1; segments <= kMostSegments; ++segments) {
    if (segments > 1 && points.size() < 2 * to_index(segments) + 1) break;
    FitCandidate candidate = best_of(data, places, segments);
    const double error = std::max(candidate.error, kNoDifference * kNoDifference);
    out.bic.push_back(n * std::log(error) + 2 * segments * std::log(n));
    if (out.bic.back() <= *std::min_element(out.bic.begin(), out.bic.end())) chosen = std::move(candidate);
  }
  double slope = 0;
  double latency = chosen.coefficients[0];
  for (std::size_t s = 0; s <= chosen.places.size(); ++s) {
    const double first = s == 0 ? 0 : chosen.places[s - 1];
    const double next = chosen.coefficients[static_cast<Eigen::Index>(s) + 1];
    latency += (slope - next) * first;
    slope = next;
    out.segments.push_back({Bytes(static_cast<std::int64_t>(first)), Seconds(latency), slope});
  }
  return out;
}

void check(const std::vector<FitPoint>& points) {
  if (points.size() < 2) {
    throw std::invalid_argument("a fit of " + std::to_string(points.size()) + " points, must be at least 2");
  }
  Bytes last(-1);
  for (const FitPoint& point : points) {
    const std::string where = "the point of " + std::to_string(point.bytes.value) + " bytes";
    if (point.bytes <= last) throw std::invalid_argument(where + ": bytes do not ascend from 0");
    if (!(point.time > Seconds(0)) || !std::isfinite(point.time.value)) {
      throw std::invalid_argument(where + ": the time is not positive");
    }
    if (!(point.spread >= Seconds(0)) || !std::isfinite(point.spread.value)) {
      throw std::invalid_argument(where + ": the spread is negative or not a number");
    }
    last = point.bytes;
  }
}

constexpr double kNinety = 1.6448536269514722;  // standard deviations that hold 90 %, both sides together

/// Neighbouring points with one time.
struct Pool {
  std::vector<Seconds> times;  ///< ascending; not empty
  [[nodiscard]] Seconds median() const { return times[(times.size() - 1) / 2]; }
};

Pool joined(const Pool& a, const Pool& b) {
  Pool out;
  std::ranges::merge(a.times, b.times, std::back_inserter(out.times));
  return out;
}

/// `measured` with the times of the fit.
Curve without_falls(const Curve& measured) {
  std::vector<Pool> pools;
  for (const CurvePoint& point : measured.points) {
    pools.push_back({{point.time}});
    while (pools.size() > 1 && pools[pools.size() - 2].median() > pools.back().median()) {
      Pool both = joined(pools[pools.size() - 2], pools.back());
      pools.pop_back();
      pools.back() = std::move(both);
    }
  }
  Curve out = measured;
  auto point = out.points.begin();
  for (const Pool& pool : pools) {
    for (std::size_t i = 0; i < pool.times.size(); ++i) (point++)->time = pool.median();
  }
  return out;
}

/// Errors of the fit at the inner points, each without that point.
std::vector<double> errors_without(const Curve& measured) {
  std::vector<double> out;
  for (std::size_t i = 1; i + 1 < measured.points.size(); ++i) {
    const CurvePoint& left_out = measured.points[i];
    Curve others = measured;
    others.points.erase(others.points.begin() + static_cast<std::ptrdiff_t>(i));
    out.push_back(std::abs(std::log(left_out.time / interpolate(without_falls(others), left_out.bytes))));
  }
  return out;
}

}  // namespace

CurveFit fit_curve(const std::vector<FitPoint>& points) {
  check(points);
  CurveFit out = fit_without_holding_out(points);
  if (points.size() < 5) return out;
  std::vector<FitPoint> kept;
  std::vector<FitPoint> held_out;
  for (std::size_t i = 0; i < points.size(); ++i)
    (i % 2 == 1 && i + 1 < points.size() ? held_out : kept).push_back(points[i]);
  const CurveFit fit = fit_without_holding_out(kept);
  FitResiduals residuals;
  std::vector<double> all;
  for (const FitPoint& point : held_out) {
    all.push_back(std::abs(time(fit, point.bytes) / point.time - 1));
    if (all.back() < residuals.worst) continue;
    residuals.worst = all.back();
    residuals.worst_bytes = point.bytes;
  }
  std::sort(all.begin(), all.end());
  const std::size_t n = all.size();
  residuals.points = to_int(n);
  residuals.median = (all[(n - 1) / 2] + all[n / 2]) / 2;
  residuals.p95 = all[(n * 95 + 99) / 100 - 1];
  out.held_out = residuals;
  return out;
}

Seconds time(const CurveFit& fit, Bytes data) {
  const auto next = std::find_if(fit.segments.begin() + 1, fit.segments.end(),
                                 [data](const FitSegment& segment) { return segment.first > data; });
  const FitSegment& segment = *(next - 1);
  return segment.latency + Seconds(segment.seconds_per_byte * static_cast<double>(data.value));
}

MonotoneFit fit_monotone(const Curve& measured) {
  MonotoneFit out{without_falls(measured), 0, 0, Bytes(0)};
  for (std::size_t i = 0; i < measured.points.size(); ++i) {
    const double error = std::abs(out.curve.points[i].time / measured.points[i].time - 1);
    out.moved += error > 0 ? 1 : 0;
    if (error <= out.furthest) continue;
    out.furthest = error;
    out.furthest_bytes = measured.points[i].bytes;
  }
  std::vector<double> errors = errors_without(measured);
  if (errors.empty()) return out;
  std::ranges::sort(errors);
  out.curve.log_spread = errors[(errors.size() * 9 + 9) / 10 - 1] / kNinety;
  return out;
}

std::string moved_text(const MonotoneFit& fit) {
  if (fit.moved == 0) return "";
  return fmt::format("adjusted {} of {} times, by up to {:.1f} % (at {} bytes), so that the curve does not decrease",
                     fit.moved, fit.curve.points.size(), fit.furthest * 100, fit.furthest_bytes.value);
}

}  // namespace stagecraft
