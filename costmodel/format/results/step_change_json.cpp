#include "costmodel/format/results/step_change_json.h"

#include <cmath>

#include "costmodel/format/shared_notations.h"

namespace stagecraft::format {
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

}  // namespace stagecraft::format
