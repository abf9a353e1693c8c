#include "costmodel/format/results/comparison_json.h"

#include <cmath>

#include "costmodel/format/shared_notations.h"

namespace stagecraft::format {
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

}  // namespace stagecraft::format
