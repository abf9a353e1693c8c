#include "costmodel/format/results/validation_json.h"

#include "costmodel/format/description.h"

namespace stagecraft::format {
namespace {

Notation<ValidatedRun> validated_run_notation() {
  using R = ValidatedRun;
  return object<R>(
      {
          required("name", &R::name, text(), "File of the measurement."),
          required("model", &R::model, text(), "Model."),
          required("schedule", &R::schedule, text(), "Schedule."),
          required("ranks", &R::ranks, integer(1, kMost), "Ranks."),
          optional("step_samples", &R::step_samples, integer(1, kMany), "Samples of one step; absent if unknown."),
          required("group", path(&R::times, &Scored::group), whole(),
                   "Runs with the same number are alternatives of each other."),
          required("predicted_s", path(&R::times, &Scored::predicted), not_negative(),
                   "Predicted time of one step, seconds."),
          optional("low_s", path(&R::times, &Scored::low), not_negative(), "Lower end of its interval, seconds."),
          optional("high_s", path(&R::times, &Scored::high), not_negative(), "Upper end of its interval, seconds."),
          required("measured_s", path(&R::times, &Scored::measured), positive(),
                   "Measured time of one step, seconds: the median of the steps that count."),
          former<R, double>("drift", positive()),
      },
      "One run.");
}

Notation<ErrorScores> error_scores_notation() {
  using E = ErrorScores;
  return object<E>({
      required("n", &E::n, integer(0, kMany), "Runs."),
      required("median", &E::median, not_negative(), "Median."),
      required("mean", &E::mean, not_negative(), "Mean."),
      required("p90", &E::p90, not_negative(), "90th percentile, linear between neighbours."),
      required("largest", &E::largest, not_negative(), "Largest."),
      required("bias", &E::bias, finite(), "Median with sign."),
  });
}

Notation<OrderScores> order_scores_notation() {
  using O = OrderScores;
  return object<O>({
      required("pairs", &O::pairs, integer(0, kMany),
               "Pairs with different predicted times, and measured times that differ by more than the noise."),
      required("right", &O::right, integer(0, kMany), "Pairs predicted in the measured order."),
      optional("tau", &O::tau, Number{.low = -1, .high = 1, .wanted = "a number from -1 to 1"},
               "Kendall's tau: (right - wrong) / pairs; absent without pairs."),
      optional("mean_regret", &O::mean_regret, not_negative(),
               "Mean over groups of the measured time of the predicted best / of the best - 1; absent without groups."),
      optional("largest_regret", &O::largest_regret, not_negative(), "The largest."),
  });
}

Notation<CoverageScores> coverage_scores_notation() {
  using C = CoverageScores;
  return object<C>({
      required("n", &C::n, integer(1, kMany), "Runs."),
      required("inside", &C::inside, share(), "Share of measurements inside."),
      required("half_width", &C::half_width, finite(), "Median of (high - low) / (high + low)."),
  });
}

Notation<Regime> regime() {
  return object<Regime>(
             {
                 required("name", &Regime::name, text(), "What they have in common, or all."),
                 required("errors", &Regime::errors, error_scores_notation(),
                          "predicted / measured - 1, without sign but for the bias."),
                 required("order", &Regime::order, order_scores_notation(),
                          "Order inside groups: runs of one model with as many ranks and samples per step."),
                 optional("coverage", &Regime::coverage, coverage_scores_notation(),
                          "Predictions with an interval; absent if there are none.")
                     .only_if([](const Regime& of) { return of.coverage.n > 0; }),
             },
             "Runs that have something in common.")
      .named("regime");
}

const Document<Validation>& validation_document() {
  static const Document<Validation> document(
      {.name = "validation",
       .version = 3,
       .title = "Validation",
       .help = "How good predictions were on measured runs. Written by stagecraft validate.",
       .changes = "Version 3 had scores without the drift of the machine, which readers ignore."},
      {
          optional("noise", &Validation::noise, not_negative(),
                   "Share by which the measured times of two runs must differ for the pair to count in order. Since "
                   "version 2; absent: unknown."),
          required("regimes", &Validation::regimes, list(regime()),
                   "Scores of all runs, then by model, schedule and ranks where the runs differ in them."),
          former<Validation>("without_drift", list(regime())),
          required("runs", &Validation::runs, list(validated_run_notation()), "The runs."),
      });
  return document;
}

}  // namespace

Validation parse_validation(const std::string& text, const std::string& file) {
  return validation_document().parse(text, file);
}
std::string validation_json(const Validation& validation) { return validation_document().text(validation); }
DocumentSchema validation_schema() { return validation_document().schema(); }

}  // namespace stagecraft::format
