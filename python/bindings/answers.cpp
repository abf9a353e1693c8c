// What stagecraft says: predictions, comparisons, explanations, rankings.

#include <fmt/format.h>

#include <string>

#include "costmodel/accuracy/compare.h"
#include "costmodel/accuracy/intervals.h"
#include "costmodel/accuracy/step_change.h"
#include "costmodel/analysis/diff.h"
#include "costmodel/analysis/explain.h"
#include "costmodel/analysis/whatif.h"
#include "costmodel/format/prediction_json.h"
#include "costmodel/format/results/accuracy_json.h"
#include "costmodel/format/results/analysis_json.h"
#include "costmodel/format/results/plan_list_json.h"
#include "costmodel/prediction/predict.h"
#include "costmodel/report/pictures.h"
#include "costmodel/text/units_text.h"
#include "partitioner/strategy.h"
#include "python/bindings/bind.h"

namespace stagecraft::python {

namespace {

constexpr int kWidth = 100;

/// A predicted number and the measured one, in the unit that the property's name says.
struct Pair {
  double predicted = 0;
  double measured = 0;
  std::optional<double> error;
};

double number(double value) { return value; }
double number(Seconds value) { return value.value; }
double number(Bytes value) { return static_cast<double>(value.value); }

template <class T>
Pair pair(const Compared<T>& compared) {
  return {number(compared.predicted), number(compared.measured), compared.error()};
}

/// A number on both sides of a change, in the unit that the property's name says.
struct ChangedNumber {
  std::optional<double> first, second, change;
};

template <class T>
ChangedNumber changed_number(const Changed<T>& changed) {
  ChangedNumber out;
  if (changed.first) out.first = number(*changed.first);
  if (changed.second) out.second = number(*changed.second);
  out.change = changed.change();
  return out;
}

std::string repr(const Prediction& p) {
  std::string out = "Prediction(step " + format_seconds(p.iteration);
  if (p.low && p.high) out += fmt::format(" ({} to {})", format_seconds(*p.low), format_seconds(*p.high));
  if (p.samples_per_s) out += fmt::format(", {:.1f} samples per second", *p.samples_per_s);
  return out + fmt::format(", idle {:.1f} %, {} stages)", p.bubble * 100, p.stages.size());
}

std::string repr(const Comparison& c) {
  std::string out = fmt::format("Comparison(step: predicted {}, measured {}", format_seconds(c.step.predicted),
                                format_seconds(c.step.measured));
  if (const auto error = c.step.error()) out += fmt::format(", {:+.1f} %", *error * 100);
  return out + ")";
}

using Interval = std::tuple<double, double, std::string>;

template <class T>
Interval interval(const Range<T>& range) {
  return {number(range.low), number(range.high), to_string(range.source)};
}

std::map<std::string, Interval> intervals(const StagePrediction& stage) {
  if (!stage.ranges) return {};
  const StageRanges& r = *stage.ranges;
  return {{"forward_s", interval(r.forward)}, {"backward_s", interval(r.backward)},
          {"compute_s", interval(r.compute)}, {"update_s", interval(r.update)},
          {"reduce_s", interval(r.reduce)},   {"exposed_transfer_s", interval(r.exposed_transfer)},
          {"bubble_s", interval(r.bubble)},   {"memory_bytes", interval(r.memory)}};
}

void bind_prediction(nb::module_& module) {
  nb::class_<StagePrediction>(module, "StagePrediction",
                              "One stage's share of a step, the mean over its replicas; times in seconds.")
      .def_ro("stage", &StagePrediction::stage)
      .def_ro("replicas", &StagePrediction::replicas)
      .def_ro("forward_s", &StagePrediction::forward, "Of one microbatch.")
      .def_ro("backward_s", &StagePrediction::backward, "Of one microbatch.")
      .def_ro("compute_s", &StagePrediction::compute, "Forwards and backwards of a step.")
      .def_ro("update_s", &StagePrediction::update, "The optimizer.")
      .def_ro("reduce_s", &StagePrediction::reduce, "Sum of the gradients of all replicas.")
      .def_ro("exposed_transfer_s", &StagePrediction::exposed_transfer,
              "Idle while the message that it needed was on the link.")
      .def_ro("bubble_s", &StagePrediction::bubble, "Idle otherwise.")
      .def_ro("in_flight", &StagePrediction::in_flight, "Largest number of microbatches held at once.")
      .def_ro("memory", &StagePrediction::memory, "Peak of the replica that needs the most.")
      .def_ro("memory_bound_bytes", &StagePrediction::memory_bound, "What no run exceeds.")
      .def_ro("fits", &StagePrediction::fits, "In the device's memory, by the bound.")
      .def_prop_ro("intervals", intervals, "(low, high, source) of the 90 % intervals, by the property's name.")
      .def("__repr__", [](const StagePrediction& self) {
        return fmt::format("StagePrediction({}: compute {}, bubble {}, {})", self.stage, format_seconds(self.compute),
                           format_seconds(self.bubble), format_bytes(self.memory.total));
      });
  nb::class_<Prediction> prediction(module, "Prediction",
                                    "Time, throughput and memory of a plan (stagecraft.prediction).");
  prediction.def_ro("iteration_s", &Prediction::iteration, "Seconds of a step.")
      .def_ro("samples_per_s", &Prediction::samples_per_s, "None if the samples of a microbatch are unknown.")
      .def_prop_ro(
          "tokens_per_s", [](const Prediction& self) { return self.rates.tokens_per_s; }, "None if unknown.")
      .def_prop_ro(
          "flops_per_s",
          [](const Prediction& self) -> std::optional<double> {
            if (!self.rates.flops_per_s) return std::nullopt;
            return self.rates.flops_per_s->value;
          },
          "Floating-point operations per second of all devices together; None if they are not counted.")
      .def_prop_ro(
          "peak_share", [](const Prediction& self) { return self.rates.peak_share; },
          "flops_per_s over the peak of the plan's devices (MFU); None if unknown.")
      .def_ro("bubble", &Prediction::bubble,
              "Share of all ranks' time, 0 to 1, that is neither compute, update nor reduce.")
      .def_ro("low_s", &Prediction::low, "Lower end of the step's 90 % interval; None if there is none.")
      .def_ro("high_s", &Prediction::high, "Upper end.")
      .def_ro("interval", &Prediction::interval, "What the interval comes from.")
      .def_ro("devices", &Prediction::devices, "Of the topology.")
      .def_ro("unused_devices", &Prediction::unused_devices, "In no stage.")
      .def_ro("idle_devices", &Prediction::idle_devices, "In a stage, but without a microbatch.")
      .def_ro("stages", &Prediction::stages)
      .def_ro("timeline", &Prediction::timeline)
      .def_prop_ro(
          "memory", [](const Prediction& self) -> const std::vector<RankMemory>& { return self.timeline.memory; },
          nb::rv_policy::reference_internal, "Peak memory of each rank.")
      .def_prop_ro(
          "fits",
          [](const Prediction& self) {
            for (const StagePrediction& stage : self.stages)
              if (!stage.fits) return false;
            return true;
          },
          "Whether all stages fit in their devices' memory.")
      .def_ro("channel", &Prediction::channel, "Over which the links were measured; empty if unknown.")
      .def_ro("other_device", &Prediction::other_device,
              "Why the times are for a device other than the topology's; empty if they are not.")
      .def_ro("calibration", &Prediction::calibration, "The factors in the figures; empty if there are none.")
      .def(
          "gantt",
          [](const Prediction& self, int width) { return report::text_gantt(report::shown_step(self), width, false); },
          nb::arg("width") = kWidth, "The step as a timeline in text, a line per rank.")
      .def("__repr__", [](const Prediction& self) { return repr(self); });
  add_document(prediction, format::parse_prediction, format::prediction_json);
  add_html(prediction, "prediction");
}

void bind_comparison(nb::module_& module) {
  nb::class_<Pair>(module, "Compared", "A predicted number and the measured one.")
      .def_ro("predicted", &Pair::predicted)
      .def_ro("measured", &Pair::measured)
      .def_ro("error", &Pair::error, "predicted / measured - 1; None if nothing was measured.")
      .def("__repr__", [](const Pair& self) {
        const std::string error = self.error ? fmt::format(", {:+.1f} %", *self.error * 100) : "";
        return fmt::format("Compared({:.4g} predicted, {:.4g} measured{})", self.predicted, self.measured, error);
      });
  nb::class_<ActionComparison>(module, "ActionComparison", "One kind of action of one stage.")
      .def_ro("stage", &ActionComparison::stage)
      .def_prop_ro("kind", [](const ActionComparison& self) { return std::string(to_string(self.kind)); })
      .def_prop_ro("time_s", [](const ActionComparison& self) { return pair(self.time); });
  nb::class_<MemoryComparison>(module, "MemoryComparison", "Peak memory of one rank.")
      .def_ro("rank", &MemoryComparison::rank)
      .def_prop_ro("peak_bytes", [](const MemoryComparison& self) { return pair(self.peak); });
  nb::class_<BubbleComparison>(module, "BubbleComparison", "Share of a step, 0 to 1, in which one rank is idle.")
      .def_ro("rank", &BubbleComparison::rank)
      .def_prop_ro("share", [](const BubbleComparison& self) { return pair(self.share); });
  nb::class_<Comparison> comparison(
      module, "Comparison", "A prediction compared with a measured run (stagecraft.comparison); str() is a table.");
  comparison.def_prop_ro(
                "step_s", [](const Comparison& self) { return pair(self.step); }, "Seconds of a step.")
      .def_prop_ro(
          "samples_per_s",
          [](const Comparison& self) -> std::optional<Pair> {
            if (!self.samples_per_s) return std::nullopt;
            return pair(*self.samples_per_s);
          },
          "None if unknown.")
      .def_ro("spread_s", &Comparison::spread, "Median absolute deviation of the measured steps, in seconds.")
      .def_ro("steps", &Comparison::steps, "Measured steps that count.")
      .def_ro("skipped", &Comparison::skipped, "Steps skipped at the start.")
      .def_ro("actions", &Comparison::actions)
      .def_ro("bubbles", &Comparison::bubbles)
      .def_ro("memory", &Comparison::memory)
      .def_ro("distrust", &Comparison::distrust, "Reasons not to trust it.")
      .def_ro("low_s", &Comparison::low, "Lower end of the prediction's 90 % interval; None if there is none.")
      .def_ro("high_s", &Comparison::high, "Upper end.")
      .def_prop_ro(
          "inside", [](const Comparison& self) { return is_inside(self); },
          "Whether the measured step lies in the interval; None without one.")
      .def("__str__", [](const Comparison& self) { return comparison_text(self); })
      .def("__repr__", [](const Comparison& self) { return repr(self); });
  add_document(comparison, format::parse_comparison, format::comparison_json);
  add_html(comparison, "comparison");
}

void bind_change(nb::module_& module) {
  nb::class_<ChangedNumber>(module, "Changed", "A number of two predictions or two runs.")
      .def_ro("first", &ChangedNumber::first, "None if the first has none.")
      .def_ro("second", &ChangedNumber::second, "None if the second has none.")
      .def_ro("change", &ChangedNumber::change,
              "second / first - 1; None unless both are known and the first is not 0.")
      .def("__repr__", [](const ChangedNumber& self) {
        const auto text = [](const std::optional<double>& value) {
          return value ? fmt::format("{:.4g}", *value) : std::string("none");
        };
        const std::string change = self.change ? fmt::format(", {:+.1f} %", *self.change * 100) : "";
        return fmt::format("Changed({} to {}{})", text(self.first), text(self.second), change);
      });
  nb::class_<ActionChange>(module, "ActionChange", "One kind of action of one stage.")
      .def_ro("stage", &ActionChange::stage)
      .def_prop_ro("kind", [](const ActionChange& self) { return std::string(to_string(self.kind)); })
      .def_prop_ro("time_s", [](const ActionChange& self) { return changed_number(self.time); });
  nb::class_<RanksChange>(module, "RanksChange", "The ranks that run a stage.")
      .def_ro("stage", &RanksChange::stage)
      .def_prop_ro(
          "bubble", [](const RanksChange& self) { return changed_number(self.bubble); }, "Mean idle share, 0 to 1.")
      .def_prop_ro(
          "peak_bytes", [](const RanksChange& self) { return changed_number(self.memory); }, "The largest peak.");
  nb::class_<ConditionChange>(module, "ConditionChange", "Something else that differs.")
      .def_ro("what", &ConditionChange::what)
      .def_ro("first", &ConditionChange::first)
      .def_ro("second", &ConditionChange::second)
      .def("__repr__", [](const ConditionChange& self) {
        return fmt::format("ConditionChange({}: {}, {})", self.what, self.first, self.second);
      });
  nb::class_<StepChange> change(
      module, "StepChange",
      "From one prediction to another, or from one measured run to another (stagecraft.change); str() is a table.");
  change.def_ro("measured", &StepChange::measured, "Whether the two are runs.")
      .def_prop_ro(
          "step_s", [](const StepChange& self) { return changed_number(self.step); }, "Seconds of a step.")
      .def_prop_ro("samples_per_s", [](const StepChange& self) { return changed_number(self.samples_per_s); })
      .def_prop_ro(
          "bubble", [](const StepChange& self) { return changed_number(self.bubble); },
          "Idle share of the step, 0 to 1, mean over all ranks.")
      .def_prop_ro(
          "peak_bytes", [](const StepChange& self) { return changed_number(self.memory); },
          "Of the rank that needs the most.")
      .def_ro("actions", &StepChange::actions)
      .def_ro("ranks", &StepChange::ranks, "By stage.")
      .def_ro("differences", &StepChange::differences)
      .def_ro("distrust", &StepChange::distrust, "Reasons not to trust it.")
      .def(
          "to_json", [](const StepChange& self) { return format::step_change_json(self); },
          "The document stagecraft.change.")
      .def("__str__", [](const StepChange& self) { return step_change_text(self, "first", "second", kWidth); })
      .def("__repr__", [](const StepChange& self) {
        return fmt::format("StepChange({}: step {} to {})", self.measured ? "runs" : "predictions",
                           format_seconds(self.step.first.value_or(Seconds(0))),
                           format_seconds(self.step.second.value_or(Seconds(0))));
      });
  add_html(change, "text");
}

void bind_analyses(nb::module_& module) {
  nb::class_<StepRatio>(module, "StepRatio", "Time per microbatch of one scenario over that of another.")
      .def_ro("ratio", &StepRatio::ratio)
      .def_ro("low", &StepRatio::low, "Of the 90 % interval.")
      .def_ro("high", &StepRatio::high, "Likewise.")
      .def_ro("first_faster", &StepRatio::first_faster, "Probability that the ratio is below 1.")
      .def("__repr__", [](const StepRatio& self) {
        return fmt::format("StepRatio({:.4g}, {:.4g} to {:.4g})", self.ratio, self.low, self.high);
      });
  nb::class_<WhatIf> whatif(module, "WhatIf", "Predictions before and after changes; str() is a table.");
  whatif.def_ro("changes", &WhatIf::changes, "\"NAME=VALUE\".")
      .def_ro("before", &WhatIf::before)
      .def_ro("after", &WhatIf::after)
      .def_ro("before_microbatch_s", &WhatIf::before_microbatch, "Seconds per microbatch.")
      .def_ro("after_microbatch_s", &WhatIf::after_microbatch, "Seconds per microbatch.")
      .def_ro("ratio", &WhatIf::ratio, "Of the time after to that before.")
      .def(
          "to_json", [](const WhatIf& self) { return format::whatif_json(self); }, "The document stagecraft.whatif.")
      .def("__str__", [](const WhatIf& self) { return whatif_text(self, kWidth); })
      .def("__repr__", [](const WhatIf& self) {
        return fmt::format("WhatIf(step {} to {})", format_seconds(self.before.iteration),
                           format_seconds(self.after.iteration));
      });
  add_html(whatif, "text");

  nb::class_<StepParts>(module, "StepParts", "Where a step's time goes, in seconds; the parts add up to the step.")
      .def_ro("compute_s", &StepParts::compute)
      .def_ro("host_s", &StepParts::host, "Host time per action, and slowdown by ranks that share a host.")
      .def_ro("update_s", &StepParts::update)
      .def_ro("reduce_s", &StepParts::reduce)
      .def_ro("exposed_transfer_s", &StepParts::exposed_transfer)
      .def_ro("bubble_s", &StepParts::bubble)
      .def("__repr__", [](const StepParts& self) {
        return fmt::format("StepParts(compute {}, host {}, update {}, reduce {}, transfer {}, bubble {})",
                           format_seconds(self.compute), format_seconds(self.host), format_seconds(self.update),
                           format_seconds(self.reduce), format_seconds(self.exposed_transfer),
                           format_seconds(self.bubble));
      });
  nb::class_<PathShare>(module, "PathShare", "Time on the critical path of one stage's actions of one kind.")
      .def_ro("stage", &PathShare::stage)
      .def_prop_ro("kind", [](const PathShare& self) { return std::string(to_string(self.kind)); })
      .def_ro("count", &PathShare::count)
      .def_ro("time_s", &PathShare::time)
      .def("__repr__", [](const PathShare& self) {
        return fmt::format("PathShare(stage {} {}: {} in {})", self.stage, to_string(self.kind), self.count,
                           format_seconds(self.time));
      });
  nb::class_<LayerMove>(module, "LayerMove", "One layer moved across a stage boundary.")
      .def_ro("layer", &LayerMove::layer)
      .def_ro("source", &LayerMove::from, "Its stage.")
      .def_ro("destination", &LayerMove::to, "Its stage after the move.")
      .def_ro("step_s", &LayerMove::step, "Predicted seconds of a step after the move.")
      .def("__repr__", [](const LayerMove& self) {
        return fmt::format("LayerMove({}: {} to {}, step {})", self.layer, self.from, self.to,
                           format_seconds(self.step));
      });
  nb::class_<Explanation> explanation(module, "Explanation",
                                      "Why a plan's step takes as long as predicted; str() is the text of explain.");
  explanation.def_ro("prediction", &Explanation::prediction)
      .def_ro("parts", &Explanation::parts, "Mean over all ranks.")
      .def_ro("path_shares", &Explanation::path_shares, "Of the critical path, the largest first.")
      .def_ro("bottleneck", &Explanation::bottleneck, "Pipeline position whose ranks work longest.")
      .def_ro("imbalance", &Explanation::imbalance, "Its work over the mean of all ranks, minus 1.")
      .def_ro("best_move", &Explanation::best_move, "The one with the shortest step; None if none fits.")
      .def(
          "to_json", [](const Explanation& self) { return format::explanation_json(self); },
          "The document stagecraft.explanation.")
      .def("__str__", [](const Explanation& self) { return explanation_text(self, kWidth); })
      .def("__repr__", [](const Explanation& self) {
        return fmt::format("Explanation(step {}, bottleneck stage {}, imbalance {:.1f} %)",
                           format_seconds(self.prediction.iteration), self.bottleneck, self.imbalance * 100);
      });
  add_html(explanation, "text");

  nb::class_<MovedLayer>(module, "MovedLayer", "A layer whose stage differs between two plans.")
      .def_ro("layer", &MovedLayer::layer)
      .def_ro("first", &MovedLayer::first, "Its stage in the first plan.")
      .def_ro("second", &MovedLayer::second, "Its stage in the second.")
      .def("__repr__", [](const MovedLayer& self) {
        return fmt::format("MovedLayer({}: {}, {})", self.layer, self.first, self.second);
      });
  nb::class_<PlanDifference>(module, "PlanDifference", "Something else in which two plans differ.")
      .def_ro("what", &PlanDifference::what)
      .def_ro("first", &PlanDifference::first)
      .def_ro("second", &PlanDifference::second)
      .def("__repr__", [](const PlanDifference& self) {
        return fmt::format("PlanDifference({}: {}, {})", self.what, self.first, self.second);
      });
  nb::class_<PlanComparison> diff(module, "PlanComparison",
                                  "Two plans for one graph and topology; str() is the text of diff.");
  diff.def_ro("moved", &PlanComparison::moved)
      .def_ro("differences", &PlanComparison::differences)
      .def_ro("first", &PlanComparison::first, "The first plan's prediction.")
      .def_ro("second", &PlanComparison::second, "The second plan's prediction.")
      .def_ro("ratio", &PlanComparison::ratio, "Of the first plan's time per microbatch to the second's.")
      .def(
          "to_json", [](const PlanComparison& self) { return format::plan_comparison_json(self); },
          "The document stagecraft.diff.")
      .def("__str__", [](const PlanComparison& self) { return plan_comparison_text(self, "first", "second", kWidth); })
      .def("__repr__", [](const PlanComparison& self) {
        return fmt::format("PlanComparison({} moved layers, steps {} and {})", self.moved.size(),
                           format_seconds(self.first.iteration), format_seconds(self.second.iteration));
      });
  add_html(diff, "text");
}

void bind_ranking(nb::module_& module) {
  using partitioner::RankedPlan;
  using partitioner::Ranking;
  using partitioner::Skipped;
  nb::class_<RankedPlan>(module, "RankedPlan", "A plan and its prediction.")
      .def_ro("origin", &RankedPlan::origin, "The strategy and the request.")
      .def_ro("plan", &RankedPlan::plan)
      .def_ro("prediction", &RankedPlan::prediction)
      .def_ro("fits", &RankedPlan::fits, "Within the memory limit.")
      .def("__repr__", [](const RankedPlan& self) {
        return fmt::format("RankedPlan({}: step {}{})", self.origin, format_seconds(self.prediction.iteration),
                           self.fits ? "" : ", does not fit");
      });
  nb::class_<Skipped>(module, "Skipped", "Plans that were skipped for one reason.")
      .def_ro("reason", &Skipped::reason)
      .def_ro("count", &Skipped::count)
      .def("__repr__", [](const Skipped& self) { return fmt::format("Skipped({}: {})", self.count, self.reason); });
  nb::class_<Ranking> ranking(module, "Ranking", "Plans that a strategy compared, best first.");
  ranking.def_ro("plans", &Ranking::plans, "Never empty.")
      .def_prop_ro(
          "best", [](const Ranking& self) -> const RankedPlan& { return self.plans.front(); },
          nb::rv_policy::reference_internal)
      .def_ro("skipped", &Ranking::skipped)
      .def_ro("slower", &Ranking::slower, "Plans not simulated: their compute time alone exceeds the best step.")
      .def_ro("lower_bound_s", &Ranking::lower_bound,
              "No plan that the strategy considers has a shorter predicted step; None if unknown.")
      .def("__len__", [](const Ranking& self) { return self.plans.size(); })
      .def("__repr__", [](const Ranking& self) {
        return fmt::format("Ranking({} plans, best {})", self.plans.size(),
                           format_seconds(self.plans.front().prediction.iteration));
      });
  add_html(ranking, "ranking");
}

void bind_plan_list(nb::module_& module) {
  using format::ListedPlan;
  using format::PlanList;
  nb::class_<ListedPlan>(module, "ListedPlan", "One plan of a list.")
      .def_ro("origin", &ListedPlan::origin, "The strategy that found it.")
      .def_ro("file", &ListedPlan::file, "Where it was written; empty if it was not.")
      .def_ro("first_layers", &ListedPlan::first, "Of each stage.")
      .def_ro("devices", &ListedPlan::devices, "Of each stage, such as \"0-3,8\".")
      .def_ro("replicas", &ListedPlan::replicas, "Of each stage.")
      .def_ro("device_count", &ListedPlan::device_count)
      .def_ro("chunks", &ListedPlan::chunks)
      .def_ro("step_s", &ListedPlan::step)
      .def_ro("samples_per_s", &ListedPlan::samples_per_s, "None if unknown.")
      .def_ro("memory_bytes", &ListedPlan::memory, "Of the device that needs the most.")
      .def_ro("device_time_s", &ListedPlan::device_time, "Step times devices.")
      .def_ro("price", &ListedPlan::price, "Of a step; None without a price of devices.")
      .def("__repr__", [](const ListedPlan& self) {
        return fmt::format("ListedPlan({}: step {}, {})", self.origin, format_seconds(self.step),
                           format_bytes(self.memory));
      });
  nb::class_<PlanList> list(module, "PlanList", "Plans that the program plan listed (stagecraft.plans).");
  list.def_ro("model", &PlanList::model)
      .def_ro("list", &PlanList::list, "\"top\", \"front\" or \"settings\".")
      .def_ro("objective", &PlanList::objective, "\"time\", \"cost\" or \"memory\".")
      .def_ro("schedule", &PlanList::schedule, "Of the best plan.")
      .def_ro("microbatches", &PlanList::microbatches, "Of the best plan.")
      .def_ro("memory_limit_bytes", &PlanList::memory_limit, "That a plan may use of a device; None if unlimited.")
      .def_ro("lower_bound_s", &PlanList::lower_bound, "No plan has a shorter predicted step; None if unknown.")
      .def_ro("proven", &PlanList::proven,
              "No other plan has a shorter predicted step than any of the first so many; None if unknown.")
      .def_ro("plans", &PlanList::plans, "Best first.")
      .def("__len__", [](const PlanList& self) { return self.plans.size(); })
      .def("__repr__", [](const PlanList& self) {
        return fmt::format("PlanList({}: {}, {} plans)", self.model, self.list, self.plans.size());
      });
  add_document(list, format::parse_plan_list, format::plan_list_json);
  add_html(list, "plan_list");
}

}  // namespace

void bind_answers(nb::module_& module) {
  bind_prediction(module);
  bind_comparison(module);
  bind_change(module);
  bind_analyses(module);
  bind_ranking(module);
  bind_plan_list(module);
}

}  // namespace stagecraft::python
