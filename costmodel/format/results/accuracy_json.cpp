#include "costmodel/format/results/accuracy_json.h"

#include <cmath>

#include "costmodel/format/description.h"
#include "costmodel/format/files/files.h"
#include "costmodel/format/shared_notations.h"

namespace stagecraft::format {
namespace {

struct LevelFactor {
  std::string level;
  double factor = 1;
};

Field<Calibration> links() {
  const auto of_level = object<LevelFactor>(
      {
          required("level", &LevelFactor::level, text(), "Name of the level."),
          required("time_factor", &LevelFactor::factor, positive(),
                   "Factor on the times of its transfers and collectives."),
      },
      "One level.");
  return derived<Calibration, std::vector<LevelFactor>>(
      "links",
      [](const Calibration& calibration) {
        std::vector<LevelFactor> out;
        for (const auto& [level, factor] : calibration.links) out.push_back({level, factor});
        return out;
      },
      [](const Cursor& at, Calibration& calibration, const std::vector<LevelFactor>& factors) {
        for (std::size_t i = 0; i < factors.size(); ++i) {
          if (!calibration.links.emplace(factors[i].level, factors[i].factor).second)
            at.at(i).member("level").fail("a factor of \"" + factors[i].level + "\" already exists");
        }
      },
      list(of_level), "Factors of the levels of the topology.");
}

const Document<Calibration>& calibration_document() {
  using C = Calibration;
  static const Document<C> document(
      {.name = "calibration",
       .version = 1,
       .title = "Calibration",
       .help =
           "One factor per mechanism of a prediction, learned from measured runs. Written by stagecraft calibrate."},
      {
          optional("model", &C::model, text(), "Model of the graph it was learned with."),
          optional("device", &C::device, text(),
                   "Device on which that graph was measured; predict refuses graphs of another one."),
          required("compute_factor", &C::compute, positive(), "Factor on forward, backward and update times."),
          required("host_per_action_s", &C::host, not_negative(),
                   "Host time of each forward, backward, weight gradient and update, in addition, seconds."),
          links(),
          required("memory_factor", &C::memory, positive(), "Factor on every part of the peak memory."),
          group<C>("interval",
                   {
                       required("log_half_width", &C::log_half_width, not_negative(),
                                "Half-width on the scale of log(measured / predicted)."),
                       required("declared", &C::width_is_declared, boolean(),
                                "True if there were too few plans to learn it from."),
                   },
                   "The 90 % interval of a step."),
          required("runs", &C::runs, integer(1, kMost), "Measured runs."),
          required("plans", &C::plans, integer(1, kMost), "Different plans among them."),
          required("median_error_before", &C::error_before, not_negative(),
                   "Median error of the runs' steps without factors, a ratio."),
          required("median_error_after", &C::error_after, not_negative(),
                   "The same with factors learned from the other plans; with one plan, from all runs."),
          provenance_field(&C::provenance),
      },
      refuse_invalid<C>);
  return document;
}

}  // namespace

Calibration parse_calibration(const std::string& text, const std::string& file) {
  return calibration_document().parse(text, file);
}
Calibration read_calibration(const std::string& path) { return parse_calibration(read_text(path), path); }
std::string calibration_json(const Calibration& calibration) { return calibration_document().text(calibration); }
DocumentSchema calibration_schema() { return calibration_document().schema(); }

namespace {

/// Both quantities, with the suffix of their unit, and their error if there is one that JSON can express.
template <class T>
FieldList<Compared<T>> compared_fields(const std::string& unit, const Notation<T>& notation, const std::string& what) {
  return {
      required("predicted" + unit, &Compared<T>::predicted, notation, "Predicted " + what),
      required("measured" + unit, &Compared<T>::measured, notation, "Measured " + what),
      shown<Compared<T>, std::optional<double>>(
          "error",
          [](const Compared<T>& of) {
            const std::optional<double> error = of.error();
            return error && std::isfinite(*error) ? error : std::nullopt;
          },
          finite(), "predicted / measured - 1, a ratio; absent if nothing was measured. Readers may ignore it."),
  };
}

FieldList<Compared<Seconds>> compared_steps() {
  return compared_fields<Seconds>("_s", not_negative(),
                                  "time of one step, seconds; measured: the median of the steps that count.");
}

Notation<Compared<WorkRates>> compared_rates() {
  using C = Compared<WorkRates>;
  return object<C>({
      required("predicted", &C::predicted, object(rates_fields()),
               "As in the prediction, at the predicted pace of a run."),
      required("measured", &C::measured, object(rates_fields()),
               "At the measured pace, on the devices that the prediction is for."),
  });
}

Notation<ActionComparison> compared_action() {
  return object(fields<ActionComparison>(
      {{required("stage", &ActionComparison::stage, whole(), "Stage."),
        required("action", &ActionComparison::kind, action(""),
                 "Kind of action; for a receive, the time for which the rank waited.")},
       embedded(&ActionComparison::time,
                compared_fields<Seconds>("_s", not_negative(),
                                         "time of one action, seconds; the mean over ranks and microbatches, then the "
                                         "median of measured steps."))}));
}

Notation<BubbleComparison> compared_bubble() {
  return object(fields<BubbleComparison>(
      {{required("rank", &BubbleComparison::rank, whole(), "Rank.")},
       embedded(&BubbleComparison::share,
                compared_fields<double>("_share", not_negative(),
                                        "share of a step in which the rank neither computes nor reduces nor updates, a "
                                        "ratio."))}));
}

Notation<MemoryComparison> compared_memory() {
  return object(fields<MemoryComparison>(
      {{required("rank", &MemoryComparison::rank, whole(), "Rank.")},
       embedded(&MemoryComparison::peak, compared_fields<Bytes>("_bytes", bytes(), "peak bytes."))}));
}

const Document<Comparison>& comparison_document() {
  using C = Comparison;
  // Before version 4 also the step times the factor.
  const FieldList<Drift> earlier = {former<Drift>("step", object(compared_steps()))};
  static const Document<C> document(
      {.name = "comparison",
       .version = 4,
       .title = "Comparison",
       .help = "A prediction and a measured run of the same plan. Written by stagecraft compare --json.",
       .changes = "Version 2 added distrust, drift and no_drift. Version 3 added interval. Version 4 removed step from "
                  "drift and added rates."},
      {
          required("step", &C::step, object(compared_steps()), "One step."),
          optional("samples", &C::samples_per_s,
                   object(compared_fields<double>("_per_s", not_negative(), "samples per second.")),
                   "Throughput; absent if prediction or measurement do not give the samples of a microbatch."),
          optional("rates", &C::rates, compared_rates(),
                   "The same throughput in other units; absent if the prediction has none."),
          group<C>("interval",
                   {
                       required("low_s", &C::low, not_negative(), "Lower end, seconds."),
                       required("high_s", &C::high, not_negative(), "Upper end, seconds."),
                       shown<C, bool>(
                           "inside", [](const C& of) { return *is_inside(of); }, boolean(),
                           "Whether the measured step lies inside."),
                   },
                   "The predicted 90 % interval of the step; absent: the prediction has none.")
              .only_if([](const C& of) { return is_inside(of).has_value(); }),
          required("spread_s", &C::spread, not_negative(), "Median absolute deviation of the measured steps, seconds."),
          required("steps", &C::steps, integer(1, kMost), "Measured steps that count."),
          required("skipped", &C::skipped, whole(), "Measured steps skipped at the start."),
          required("ended", &C::ended, boolean(), "false: the run had not ended when it wrote the measurement."),
          optional("distrust", &C::distrust, list(text("Reason.")), "Reasons not to trust the measurement."),
          optional("drift", &C::drift, drift("Time during the run / time during the profile.", earlier),
                   "How much slower the device was during the run than during the profile; absent if unknown."),
          optional("no_drift", &C::no_drift, text(), "Why there is no drift although profile and run have yardsticks."),
          required("actions", &C::actions, list(compared_action()), "Actions by stage and kind; without sends."),
          required("bubbles", &C::bubbles, list(compared_bubble()), "Idle share of each rank."),
          required("memory", &C::memory, list(compared_memory()), "Peak memory of each rank."),
      });
  return document;
}

}  // namespace

Comparison parse_comparison(const std::string& text, const std::string& file) {
  return comparison_document().parse(text, file);
}
std::string comparison_json(const Comparison& comparison) { return comparison_document().text(comparison); }
DocumentSchema comparison_schema() { return comparison_document().schema(); }

namespace {

/// The known sides, with the suffix of their unit, and the change if there is one that JSON can express.
template <class T>
FieldList<Changed<T>> changed_fields(const std::string& unit, const Notation<T>& notation) {
  return {
      optional("first" + unit, &Changed<T>::first, notation),
      optional("second" + unit, &Changed<T>::second, notation),
      shown<Changed<T>, std::optional<double>>(
          "change",
          [](const Changed<T>& of) {
            const std::optional<double> change = of.change();
            return change && std::isfinite(*change) ? change : std::nullopt;
          },
          finite(), "second / first - 1; absent unless both are known and the first is not 0"),
  };
}

Notation<Changed<Seconds>> changed_time() { return object(changed_fields<Seconds>("_s", not_negative())); }
Notation<Changed<double>> changed_share() { return object(changed_fields<double>("_share", not_negative())); }
Notation<Changed<Bytes>> changed_bytes() { return object(changed_fields<Bytes>("_bytes", bytes())); }

Notation<Changed<Range<Seconds>>> intervals() {
  using R = Range<Seconds>;
  using C = Changed<R>;
  const auto range =
      object<R>({required("low_s", &R::low, not_negative()), required("high_s", &R::high, not_negative())});
  return object<C>({optional("first", &C::first, range), optional("second", &C::second, range)});
}

/// The runs' numbers of steps; 0 of one without.
Notation<Changed<std::size_t>> step_counts() {
  using C = Changed<std::size_t>;
  return object<C>({
      shown<C, std::size_t>(
          "first", [](const C& of) { return of.first.value_or(0); }, whole()),
      shown<C, std::size_t>(
          "second", [](const C& of) { return of.second.value_or(0); }, whole()),
  });
}

Notation<ActionChange> action_change() {
  return object(fields<ActionChange>({{required("stage", &ActionChange::stage, whole()),
                                       required("action", &ActionChange::kind, action(""),
                                                "forward, backward, weight-gradient, update, reduce, or the wait of "
                                                "receive-activation or receive-gradient")},
                                      embedded(&ActionChange::time, changed_fields<Seconds>("_s", not_negative()))}),
                "mean over ranks and microbatches; of a run, the median over its steps");
}

Notation<RanksChange> ranks_change() {
  using R = RanksChange;
  return object<R>({
      required("stage", &R::stage, whole()),
      required("bubble", &R::bubble, changed_share(), "mean over the stage's ranks"),
      required("memory", &R::memory, changed_bytes(), "the largest peak of the stage's ranks"),
  });
}

Notation<ConditionChange> condition_change() {
  return object<ConditionChange>({
      required("what", &ConditionChange::what, text(), "such as: schedule"),
      required("first", &ConditionChange::first, text()),
      required("second", &ConditionChange::second, text()),
  });
}

const Document<StepChange>& change_document() {
  using S = StepChange;
  const auto of_runs = [](const S& change) { return change.measured; };
  static const Document<S> document(
      {.name = "change",
       .version = 1,
       .title = "Change",
       .help = "From one predicted step to another, or from one measured run to another; written by stagecraft compare "
               "--json. A side without a figure has no key for it."},
      {
          required("of", &S::measured, words<bool>("of", {{"predictions", false}, {"runs", true}})),
          required("step", &S::step, changed_time(), "of a run, the median of the steps that count"),
          optional("intervals", &S::interval, intervals(), "90 % intervals of predicted steps"),
          optional("spread", &S::spread, changed_time(), "median absolute deviation of a run's steps").only_if(of_runs),
          optional("steps", &S::steps, step_counts(), "of the runs that count").only_if(of_runs),
          required("samples", &S::samples_per_s, object(changed_fields<double>("_per_s", not_negative())),
                   "samples per second"),
          required("bubble", &S::bubble, changed_share(), "idle share of the step, mean over all ranks"),
          required("memory", &S::memory, changed_bytes(), "peak of the rank that needs the most"),
          required("actions", &S::actions, list(action_change())),
          required("ranks", &S::ranks, list(ranks_change()), "by stage; ranks with several stages count for the first"),
          required("differences", &S::differences, list(condition_change()), "what else differs"),
          optional("distrust", &S::distrust, list(text()), "reasons not to trust it; absent: none"),
          optional("drift", &S::drift, drift("Time during the second run / time during the first."),
                   "how much slower the machine was during the second run; absent: unknown"),
          optional("no_drift", &S::no_drift, text(), "why the drift is unknown although both runs have a yardstick"),
      });
  return document;
}

}  // namespace

std::string step_change_json(const StepChange& change) { return change_document().text(change); }
DocumentSchema step_change_schema() { return change_document().schema(); }

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
