// plan, predict, whatif, explain, diff and compare, each as its program does it. The Python functions with defaults and
// descriptions are those of stagecraft/planning.py.

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <functional>
#include <string>
#include <vector>

#include "costmodel/accuracy/calibrate.h"
#include "costmodel/accuracy/compare.h"
#include "costmodel/accuracy/intervals.h"
#include "costmodel/accuracy/step_change.h"
#include "costmodel/analysis/diff.h"
#include "costmodel/analysis/explain.h"
#include "costmodel/analysis/whatif.h"
#include "costmodel/errors.h"
#include "costmodel/prediction/device_match.h"
#include "costmodel/prediction/predict.h"
#include "costmodel/schedule.h"
#include "costmodel/text/units_text.h"
#include "costmodel/version.h"
#include "partitioner/candidate.h"
#include "partitioner/strategies/strategies.h"
#include "python/bindings/bind.h"

namespace stagecraft::python {

namespace {

using partitioner::Constraints;
using partitioner::Option;
using partitioner::OptionKind;
using partitioner::Strategy;
using OptionInPython = std::variant<bool, double, std::string>;

/// Doubts about a graph and a topology that the caller accepts.
struct AcceptedDoubts {
  bool untrusted = false;
  bool other_device = false;
};

/// As the programs' check_times: how the device of the times differs, as accepted_differences says. Throws
/// std::invalid_argument for a graph without times, and for times of a graph or of links that are not trusted, or of
/// another device, and not accepted.
std::string check_times(Graph& graph, Topology& topology, const AcceptedDoubts& acceptance) {
  const std::string distrust = distrust_text(graph);
  if (!distrust.empty() && !acceptance.untrusted)
    throw InputError(ErrorKind::UntrustedProfile, distrust + "; profile again, or pass accept_untrusted=True");
  const std::string of_links = distrust_text(topology);
  if (!of_links.empty() && !acceptance.untrusted)
    throw InputError(ErrorKind::UntrustedLinks, of_links + "; measure them again, or pass accept_untrusted=True");
  check_has_times(graph);
  take_kind(topology, graph);
  return accepted_differences(graph, topology, acceptance.other_device);
}

/// Lets Python end a long call on Ctrl-C.
void check_signals(double /*done*/) {
  const nb::gil_scoped_acquire gil;
  if (PyErr_CheckSignals() != 0) throw nb::python_error();
}

PredictOptions interruptible() {
  PredictOptions out;
  out.progress = check_signals;
  return out;
}

/// The strategy's option of that name; dashes may be underscores. Throws std::invalid_argument listing the names.
const Option& option_called(const Strategy& strategy, std::string name) {
  std::ranges::replace(name, '_', '-');
  std::vector<std::string> known;
  for (const Option& option : strategy.options) {
    if (std::ranges::find(option.names, name) != option.names.end()) return option;
    known.push_back(option.names.front());
  }
  if (known.empty()) throw std::invalid_argument("strategy " + strategy.name + " has no options");
  throw InputError(ErrorKind::UnknownName, unknown_name("option of strategy " + strategy.name, name, known));
}

partitioner::OptionValue value_of_option(const Option& option, const OptionInPython& given) {
  const std::string& name = option.names.front();
  switch (option.kind) {
    case OptionKind::Flag:
      if (const bool* flag = std::get_if<bool>(&given)) return *flag;
      throw std::invalid_argument(name + ": must be True or False");
    case OptionKind::Positive: {
      const double* number = std::get_if<double>(&given);
      if (number == nullptr || !(*number > 0)) throw std::invalid_argument(name + ": must be a number above 0");
      return *number;
    }
    case OptionKind::Bytes:
      break;
  }
  if (const double* number = std::get_if<double>(&given)) return Bytes(static_cast<std::int64_t>(*number));
  if (const std::string* text = std::get_if<std::string>(&given)) return parse_bytes(*text);
  throw std::invalid_argument(name + ": must be a number of bytes or a string such as \"16GiB\"");
}

/// What the programs note in a plan.
void note(partitioner::RankedPlan& ranked, const std::string& other_device) {
  ranked.prediction.other_device = other_device;
  Provenance& provenance = ranked.plan.provenance;
  provenance.tool = std::string("stagecraft (Python) ") + version();
  if (const std::string idle = idle_text(ranked.prediction); !idle.empty()) provenance.notes["idle devices"] = idle;
  if (!other_device.empty()) provenance.notes["other device"] = other_device;
  if (!ranked.prediction.backward_parts.empty()) provenance.notes["backward parts"] = ranked.prediction.backward_parts;
}

partitioner::Ranking plans(Graph graph, Topology topology, const std::string& strategy,
                           const std::vector<std::string>& split_at,
                           const std::map<std::string, OptionInPython>& options, Constraints constraints,
                           const AcceptedDoubts& acceptance) {
  const ScheduleEntry& schedule = schedule_by_name(constraints.plan.schedule);
  if (constraints.chunks.value_or(1) > 1 && !schedule.chunked)
    throw std::invalid_argument("schedule " + schedule.name + " runs one stage per device; use schedule=\"" +
                                chunked_schedule().name + "\"");
  const std::string other_device = check_times(graph, topology, acceptance);
  const partitioner::CostModel costs = partitioner::simulated_costs(check_signals);
  const auto result = [&]() -> partitioner::StrategyResult {
    if (!split_at.empty()) {
      const partitioner::Candidate given = partitioner::split_candidate(
          graph, split_at, constraints.replicas, partitioner::microbatches_of_a_step(constraints.plan),
          partitioner::chunk_counts(constraints).front(), placement_of(constraints.plan));
      const partitioner::CandidateOf same = [&](const Graph&,
                                                const Topology& t) -> std::optional<partitioner::Candidate> {
        if (t.levels != topology.levels) return std::nullopt;
        return given;
      };
      return rank_one("split-at", graph, topology, given, costs, constraints, same);
    }
    const Strategy& chosen = partitioner::strategy_by_name(strategy);
    if (chosen.decides_stages && constraints.stages)
      throw std::invalid_argument("strategy " + chosen.name + " finds the number of stages itself");
    for (const auto& [name, value] : options) {
      const Option& option = option_called(chosen, name);
      const partitioner::OptionValue converted = value_of_option(option, value);
      if (!(std::holds_alternative<bool>(converted) && !std::get<bool>(converted)))
        constraints.options[option.names.front()] = converted;
    }
    return partitioner::plan_with(strategy, graph, topology, costs, constraints);
  }();
  partitioner::Ranking ranking = value_of(result);
  for (partitioner::RankedPlan& ranked : ranking.plans) {
    note(ranked, other_device);
    list_parameters(graph, ranked.plan);
  }
  return ranking;
}

}  // namespace

void bind_functions(nb::module_& module) {
  const auto free = nb::call_guard<nb::gil_scoped_release>();
  nb::class_<AcceptedDoubts>(module, "Acceptance", "Doubts about a graph that the caller accepts.")
      .def(
          "__init__",
          [](AcceptedDoubts& self, bool untrusted, bool other_device) {
            new (&self) AcceptedDoubts{untrusted, other_device};
          },
          nb::arg("untrusted"), nb::arg("other_device"));
  module.def("parse_bytes", &parse_bytes, nb::arg("text"),
             "Bytes in a string such as \"16e9\", \"512MB\" or \"1.5 GiB\".");
  module.def("format_bytes", &format_bytes, nb::arg("bytes"), "For display: \"1.50 GiB\".");
  module.def("format_seconds", &format_seconds, nb::arg("seconds"), "For display: \"12.3 ms\".");
  module.def(
      "strategies",
      [] {
        std::map<std::string, std::string> out;
        for (const Strategy& strategy : partitioner::strategies()) out[strategy.name] = strategy.help;
        return out;
      },
      "The strategies of plan and what they do, by name.");
  module.def(
      "settings",
      [] {
        std::vector<std::tuple<std::string, std::string, std::string>> out;
        for (const SettingText& text : settings_known()) out.emplace_back(text.name, text.values, text.meaning);
        return out;
      },
      "What whatif can change: (name, values, meaning).");
  module.attr("DEFAULT_STRATEGY") = partitioner::kDefaultStrategy;
  module.def(
      "plans",
      [](const Graph& graph, const Topology& topology, const std::string& strategy,
         const std::vector<std::string>& split_at, const std::map<std::string, OptionInPython>& options,
         std::optional<int> stages, std::optional<int> chunks, const std::vector<int>& replicas, int microbatches,
         const std::string& schedule, std::optional<Bytes> memory_limit, bool recompute, int recompute_every,
         std::optional<Bytes> gradient_bucket_bytes, const std::string& shard, const AcceptedDoubts& acceptance) {
        Constraints constraints;
        constraints.stages = stages;
        constraints.chunks = chunks;
        constraints.replicas = replicas;
        constraints.memory_limit = memory_limit;
        constraints.plan.microbatches = microbatches;
        constraints.plan.schedule = schedule;
        constraints.plan.recompute = recompute || recompute_every > 0;
        constraints.plan.recompute_every = recompute_every;
        constraints.plan.gradient_bucket_bytes = gradient_bucket_bytes;
        constraints.plan.sharding = state_sharding(shard);
        return plans(graph, topology, strategy, split_at, options, std::move(constraints), acceptance);
      },
      nb::arg("graph"), nb::arg("topology"), nb::arg("strategy"), nb::arg("split_at"), nb::arg("options"),
      nb::arg("stages").none(), nb::arg("chunks").none(), nb::arg("replicas"), nb::arg("microbatches"),
      nb::arg("schedule"), nb::arg("memory_limit").none(), nb::arg("recompute"), nb::arg("recompute_every"),
      nb::arg("gradient_bucket_bytes").none(), nb::arg("shard"), nb::arg("acceptance"), free);
  module.def(
      "predict",
      [](Graph graph, Topology topology, const Plan& plan, const std::optional<Calibration>& calibration,
         bool free_transfers, const AcceptedDoubts& acceptance) {
        const std::string other_device = check_times(graph, topology, acceptance);
        PredictOptions options = interruptible();
        options.free_transfers = free_transfers;
        Prediction out = value_of(predict_with_intervals(graph, topology, BoundPlan(plan), calibration, options));
        out.other_device = other_device;
        return out;
      },
      nb::arg("graph"), nb::arg("topology"), nb::arg("plan"), nb::arg("calibration").none(), nb::arg("free_transfers"),
      nb::arg("acceptance"), free);
  module.def(
      "whatif",
      [](Graph graph, Topology topology, const Plan& plan, const std::vector<std::string>& changes,
         const std::optional<Calibration>& calibration, const AcceptedDoubts& acceptance) {
        const std::string other_device = check_times(graph, topology, acceptance);
        return value_of(
            what_if({std::move(graph), topology, plan}, changes, calibration, interruptible(), other_device));
      },
      nb::arg("graph"), nb::arg("topology"), nb::arg("plan"), nb::arg("changes"), nb::arg("calibration").none(),
      nb::arg("acceptance"), free);
  module.def(
      "changed",
      [](const Graph& graph, const Topology& topology, const Plan& plan, const std::vector<std::string>& changes) {
        Scenario scenario{graph, topology, plan};
        for (const std::string& change : changes) scenario = with_change(std::move(scenario), change);
        return std::tuple(std::move(scenario.graph), std::move(scenario.topology), std::move(scenario.plan));
      },
      nb::arg("graph"), nb::arg("topology"), nb::arg("plan"), nb::arg("changes"), free);
  module.def(
      "explain",
      [](Graph graph, Topology topology, const Plan& plan, bool moves, const std::optional<Calibration>& calibration,
         const AcceptedDoubts& acceptance) {
        static_cast<void>(check_times(graph, topology, acceptance));
        ExplainOptions options;
        options.moves = moves;
        options.calibration = calibration;
        options.predict = interruptible();
        return value_of(explain(graph, topology, BoundPlan(plan), options));
      },
      nb::arg("graph"), nb::arg("topology"), nb::arg("plan"), nb::arg("moves"), nb::arg("calibration").none(),
      nb::arg("acceptance"), free);
  module.def(
      "diff",
      [](Graph graph, Topology topology, const Plan& first, const Plan& second,
         const std::optional<Calibration>& calibration, const AcceptedDoubts& acceptance) {
        static_cast<void>(check_times(graph, topology, acceptance));
        return value_of(compare_plans(graph, topology, first, second, calibration, interruptible()));
      },
      nb::arg("graph"), nb::arg("topology"), nb::arg("first"), nb::arg("second"), nb::arg("calibration").none(),
      nb::arg("acceptance"), free);
  module.def("compare", &compare, nb::arg("prediction"), nb::arg("measurement"), nb::arg("skip"), free);
  module.def("change", nb::overload_cast<const Prediction&, const Prediction&>(&step_change), nb::arg("first"),
             nb::arg("second"), free);
  module.def("change", nb::overload_cast<const Measurement&, const Measurement&, std::size_t>(&step_change),
             nb::arg("first"), nb::arg("second"), nb::arg("skip"), free);
}

}  // namespace stagecraft::python
