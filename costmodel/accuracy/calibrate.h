#pragma once

#include <map>
#include <span>
#include <string>
#include <variant>
#include <vector>

#include "costmodel/bound_plan.h"
#include "costmodel/graph.h"
#include "costmodel/prediction/predict.h"
#include "costmodel/timeline.h"
#include "costmodel/topology.h"

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

/// One factor per mechanism of a prediction, learned from measured runs, and the error of predictions that use them.
struct Calibration {
  std::string model;                    ///< of the graph it was learned with, for display
  std::string device;                   ///< of the graph; empty: unknown
  double compute = 1;                   ///< on forward, backward and update times
  Seconds host;                         ///< additional host time per forward, backward, weight gradient and update
  std::map<std::string, double> links;  ///< on the times of each level's link, by the level's name
  double memory = 1;                    ///< on every part of the peak memory
  /// Half-width of the 90 % interval of a step, on the scale of log(measured / predicted).
  double log_half_width = 0;
  bool width_is_declared = false;  ///< too few plans to learn it from
  int runs = 0;
  int plans = 0;            ///< number of distinct plans
  double error_before = 0;  ///< median error of the runs' steps without factors
  double error_after = 0;   ///< the same with factors learned from the other plans; one plan: with all factors
  Provenance provenance;
  friend bool operator==(const Calibration&, const Calibration&) = default;
};

/// A measured run of a plan.
struct CalibrationRun {
  std::string name;  ///< for messages
  Plan plan;
  Measurement measurement;
};

struct CalibrateOptions {
  std::size_t skip = 2;  ///< measured steps to skip at the start; the last one is never skipped
};

/// Learns the factors from the steps of all runs, from their forwards and backwards where spans were kept, and from
/// their peak memory, by robust_factors: a mechanism that the runs hardly constrain stays near 1 (host time near 20
/// us). Runs of the same plan are held out together to compute error_after and the interval. With fewer than 5 plans,
/// its half-width is never below 15 % (assumed). Throws std::invalid_argument if there are no runs or if two levels
/// have the same name. If a run's plan does not fit the graph or topology, cannot be simulated, or has other ranks than
/// the run's measurement, the error names the run.
[[nodiscard]] Calibration calibrate(const Graph& graph, const Topology& topology,
                                    const std::vector<CalibrationRun>& runs, const CalibrateOptions& options = {});

/// Throws std::invalid_argument for a factor, host time, width or error that is not finite or out of range.
void validate(const Calibration& calibration);

/// The graph with the times of its layers and of its whole iteration scaled.
[[nodiscard]] Graph with_calibration(Graph graph, const Calibration& calibration);
/// The topology with scaled links: their latency and bandwidth, all measured times, and the processor time of messages,
/// which is a part of theirs. A level that the calibration does not name is unchanged. Throws
/// std::invalid_argument for a factor of a level that the topology does not have, listing its levels.
[[nodiscard]] Topology with_calibration(Topology topology, const Calibration& calibration);

/// predict with all factors, an interval of the step, and Prediction::calibration. Throws as predict, and
/// std::invalid_argument if the calibration was learned with times of another device or names a level that the topology
/// does not have.
[[nodiscard]] std::variant<Prediction, Infeasible> predict_calibrated(const Graph& graph, const Topology& topology,
                                                                      const BoundPlan& plan,
                                                                      const Calibration& calibration,
                                                                      PredictOptions options = {});

/// "compute x 1.08, host 20 us per action, link server x 1.3, memory x 1.1; from 12 runs of 4 plans, median error 3.1
/// %".
[[nodiscard]] std::string calibration_text(const Calibration& calibration);

}  // namespace stagecraft
