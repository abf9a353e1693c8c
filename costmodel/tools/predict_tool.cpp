#include <fmt/format.h>
#include <fmt/ranges.h>

#include <iostream>

#include "costmodel/accuracy/compare.h"
#include "costmodel/accuracy/intervals.h"
#include "costmodel/analysis/whatif.h"
#include "costmodel/command/tool.h"
#include "costmodel/command/tool_inputs.h"
#include "costmodel/errors.h"
#include "costmodel/format/files/files.h"
#include "costmodel/format/files/outputs.h"
#include "costmodel/format/plan_json.h"
#include "costmodel/format/prediction_json.h"
#include "costmodel/format/trace_events.h"
#include "costmodel/index.h"
#include "costmodel/interchange/chakra.h"
#include "costmodel/prediction/device_match.h"
#include "costmodel/prediction/predict.h"
#include "costmodel/prediction/stage_costs.h"
#include "costmodel/report/pictures.h"
#include "costmodel/text/progress.h"
#include "costmodel/text/table.h"
#include "costmodel/text/units_text.h"

namespace {

using stagecraft::format_bytes;
using stagecraft::format_seconds;

/// "does not fit" if the estimate exceeds the device's memory, "may not fit" if only the bound does, or empty; by
/// stage. Stages of one device count together.
std::vector<std::string> fit_texts(const stagecraft::Prediction& p, std::optional<stagecraft::Bytes> memory,
                                   const stagecraft::BoundPlan& plan) {
  std::vector<std::string> out(p.stages.size());
  for (std::size_t s = 0; memory && s < out.size(); ++s) {
    stagecraft::Bytes total;
    stagecraft::Bytes bound;
    for (const int chunk : plan.stages_at(plan.position_of(stagecraft::to_int(s)))) {
      total += p.stages[stagecraft::to_index(chunk)].memory.total;
      bound += p.stages[stagecraft::to_index(chunk)].memory_bound;
    }
    if (bound > *memory) out[s] = "may not fit, up to " + format_bytes(bound);
    if (total > *memory) out[s] = "does not fit";
  }
  return out;
}

/// `fits`: of each stage, see fit_texts. `notes` are printed at the end. A "~" precedes figures that were measured
/// on another device.
void print(const stagecraft::Prediction& p, const std::vector<std::string>& fits,
           const std::vector<std::string>& notes) {
  const std::string mark = p.other_device.empty() ? "" : "~";
  const auto time = [&](stagecraft::Seconds t) { return mark + format_seconds(t); };
  std::string out = "step " + time(p.iteration);
  if (p.samples_per_s) out += ", " + throughput_text(p, mark);
  out += ", " + bubble_text(p, mark) + "\n" + rates_lines(p, mark);
  // Differences that nobody could measure are not worth a line.
  if (const stagecraft::Seconds steady = steady_step(p); steady < p.iteration * 0.995)
    out += fmt::format("{} per step in a run, idle {}{:.1f} %: ranks begin the next step while others end this one\n",
                       time(steady), mark, idle_in_run(p) * 100);
  if (p.low && p.high)
    out += fmt::format("90 % interval of the step: {} to {}\n{}", time(*p.low), time(*p.high),
                       stagecraft::list_lines(p.interval, "  ", stagecraft::line_width()));
  std::vector<std::vector<std::string>> rows;
  for (const stagecraft::StagePrediction& s : p.stages) {
    rows.push_back({std::to_string(s.stage), std::to_string(s.replicas), time(s.forward), time(s.backward),
                    time(s.compute), time(s.update), time(s.reduce), time(s.exposed_transfer), time(s.bubble),
                    std::to_string(s.in_flight), mark + format_bytes(s.memory.total),
                    fits[stagecraft::to_index(s.stage)]});
  }
  out += stagecraft::table_text({{.title = "stage"},
                                 {.title = "replicas"},
                                 {.title = "forward"},
                                 {.title = "backward"},
                                 {.title = "compute"},
                                 {.title = "update"},
                                 {.title = "reduce"},
                                 {.title = "transfer"},
                                 {.title = "bubble"},
                                 {.title = "in flight"},
                                 {.title = "peak memory"},
                                 {.title = "", .left = true}},
                                rows, stagecraft::error_screen());
  out += "forward and backward are per microbatch, the rest per step; means over replicas\n";
  if (!p.changes.empty()) out += fmt::format("with {}\n", fmt::join(p.changes, ", "));
  if (!p.channel.empty())
    out += "links measured over " + p.channel + "; a run over another channel takes a different time\n";
  if (!p.calibration.empty()) out += "calibrated: " + p.calibration + "\n";
  if (const std::string text = idle_text(p); !text.empty()) out += "note: " + text + "\n";
  if (!p.other_device.empty())
    out += "~ marks figures that were not measured on this topology's devices: " + p.other_device + "\n";
  if (!p.backward_parts.empty()) out += "note: " + p.backward_parts + "\n";
  if (!p.message_processing.empty()) out += "note: " + p.message_processing + "\n";
  for (const std::string& note : notes) {
    if (!note.empty()) out += "note: " + note + "\n";
  }
  std::cerr << out;
}

/// The table of --scale.
void print(const std::vector<stagecraft::ScalePoint>& scaling) {
  std::vector<std::vector<std::string>> rows;
  for (const stagecraft::ScalePoint& point : scaling) {
    const auto rate = [&](double devices) {
      return point.samples_per_s ? fmt::format("{:.1f}", *point.samples_per_s / devices) : std::string("-");
    };
    rows.push_back({std::to_string(point.copies), std::to_string(point.devices), std::to_string(point.microbatches),
                    format_seconds(point.iteration), format_seconds(point.low) + " to " + format_seconds(point.high),
                    rate(1), rate(point.devices), fmt::format("{:.1f} %", point.efficiency * 100),
                    fmt::format("{:.1f} to {:.1f} %", point.efficiency_low * 100, point.efficiency_high * 100),
                    point.fits ? "" : "may not fit"});
  }
  std::cerr << "copies of the plan, each on as many groups of the outermost level\n" +
                   stagecraft::table_text({{.title = "copies"},
                                           {.title = "devices"},
                                           {.title = "microbatches"},
                                           {.title = "step"},
                                           {.title = "90 % interval"},
                                           {.title = "samples/s"},
                                           {.title = "per device"},
                                           {.title = "efficiency"},
                                           {.title = "90 % interval"},
                                           {.title = "", .left = true}},
                                          rows, stagecraft::error_screen());
}

/// The files of write_chakra.
std::vector<stagecraft::format::OutputFile> chakra_files(const stagecraft::BoundPlan& plan) {
  std::vector<stagecraft::format::OutputFile> out{{"comm_groups.json", "list of Chakra groups"}};
  for (std::size_t rank = 0; rank < plan.ranks().size(); ++rank)
    out.push_back({"chakra." + std::to_string(rank) + ".et", "Chakra trace"});
  return out;
}

}  // namespace

int main(int argc, char** argv) {
  stagecraft::ScenarioFiles files;
  std::string plan_path;
  std::string output;
  std::string trace;
  std::string chakra;
  bool force = false;
  bool gantt = false;
  std::vector<int> scale;
  std::vector<std::string> changes;
  bool same_batch = false;
  stagecraft::PredictOptions options;
  return stagecraft::run_tool(
      {"predict",
       "Predicts time, throughput and memory of a plan by replaying its action lists against measured costs.",
       "stagecraft predict graph.json topology.json plan.json -o prediction.json --trace trace.json\n"
       "  stagecraft predict graph.json topology.json plan.json --scale 1,2,4,8 -o prediction.json\n"
       "  stagecraft predict graph.json topology.json plan.json --set link.node.bandwidth=2x\n"
       "  stagecraft predict graph.json plan.json --devices 8,2 --bandwidths 25e9,3e9\n\n" +
           stagecraft::settings_text()},
      argc, argv,
      [&](CLI::App& app) {
        add_scenario_files_or_devices(app, files, plan_path);
        stagecraft::add_set_option(app, changes);
        app.add_option("-o,--output", output, "output file; - is standard output")->type_name("FILE");
        app.add_option("--trace", trace, "a Chrome trace (also for ui.perfetto.dev) of the predicted step")
            ->type_name("FILE");
        app.add_flag("--gantt", gantt, "print the predicted step as a timeline in text, as wide as the terminal");
        CLI::Option* const copies =
            app.add_option(
                   "--scale", scale,
                   "also predict this many copies of the plan side by side, such as 1,2,4,8: the number of groups in "
                   "the topology's outermost level and the replicas of each stage are multiplied by it")
                ->delimiter(',')
                ->transform(stagecraft::integer(1))
                ->type_name("COPIES,...");
        app.add_flag("--same-batch", same_batch,
                     "with --scale, share the plan's microbatches among the copies (default: each copy has them)")
            ->needs(copies);
        app.add_option("--chakra", chakra, "folder for Chakra execution traces, one per rank, for ASTRA-sim")
            ->type_name("FOLDER");
        stagecraft::add_force_option(app, force);
        app.add_flag("--free-transfers", options.free_transfers, "treat transfers as free");
        add_scenario_options(app, files, "; ignores the slowdown of shared hosts and marks every figure with ~");
      },
      [&] {
        std::vector<std::string> inputs = files.all();
        inputs.push_back(plan_path);
        stagecraft::format::check_outputs(inputs, {{output, "stagecraft.prediction"}, {trace, "Chrome trace"}}, force);
        if (!chakra.empty()) stagecraft::format::check_can_write_in(chakra);
        stagecraft::ScenarioInputs scenario = read_scenario("stagecraft-predict", files);
        const std::optional<stagecraft::Estimate> estimate = scenario.graph.estimate;
        const auto [graph, topology, given] = stagecraft::with_settings(
            {std::move(scenario.graph), std::move(scenario.topology), stagecraft::format::read_plan(plan_path)},
            changes);
        const stagecraft::BoundPlan plan(given);
        if (!chakra.empty()) stagecraft::format::check_outputs_in(chakra, inputs, chakra_files(plan), force);
        auto result = stagecraft::within(plan_path, [&, &graph = graph, &topology = topology] {
          stagecraft::ShareProgress progress("predicting");
          options.progress = progress.teller();
          return stagecraft::predict_with_intervals(graph, topology, plan, scenario.calibration, options);
        });
        auto prediction = stagecraft::answer_of(std::move(result), plan_path + ": ");
        prediction.other_device = graph.estimate == estimate ? scenario.other_device : estimate_text(graph);
        prediction.changes = changes;
        stagecraft::sign(prediction.provenance);
        std::vector<std::string> notes{stagecraft::data_wait_text(graph, topology, plan),
                                       stagecraft::launches_text(graph),
                                       stagecraft::slowdown_assumption(graph, topology)};
        for (const stagecraft::Unmeasured& part : stagecraft::unmeasured(graph, topology, plan))
          notes.push_back(part.text);
        print(prediction, fit_texts(prediction, topology.device.memory, plan), notes);
        if (!scale.empty()) {
          auto points = stagecraft::within("--scale", [&, &graph = graph, &topology = topology] {
            stagecraft::ShareProgress progress("predicting copies");
            options.progress = progress.teller();
            return stagecraft::predict_scaling(
                {graph, topology, plan.plan()}, scale,
                same_batch ? stagecraft::ScaledWork::Fixed : stagecraft::ScaledWork::PerCopy, scenario.calibration,
                options);
          });
          prediction.scaling = stagecraft::answer_of(std::move(points), "--scale: ");
          print(prediction.scaling);
          if (topology.levels.size() == 1)
            std::cerr << "note: the topology has one level, so all copies are on one host; for nodes give two, as in "
                         "--devices 2,1 --bandwidths 3e9,1e9\n";
        }
        if (gantt) {
          const stagecraft::Screen screen = stagecraft::error_screen();
          std::cerr << stagecraft::report::text_gantt(stagecraft::report::shown_step(prediction), screen.width,
                                                      screen.colour);
        }
        if (prediction.reckoned_microbatches > 0) {
          const int replayed = plan.plan().microbatches - prediction.reckoned_microbatches;
          std::cerr << fmt::format(
              "simulated {} of {} microbatches; the step repeats itself, so the timeline has a gap for the others\n",
              replayed, plan.plan().microbatches);
          if (!chakra.empty()) {
            throw std::invalid_argument(fmt::format(
                "--chakra {}: needs all microbatches of a step, {} of {} were simulated; plan fewer microbatches",
                chakra, replayed, plan.plan().microbatches));
          }
        }
        if (!output.empty()) stagecraft::format::write_text(output, stagecraft::format::prediction_json(prediction));
        if (!trace.empty())
          stagecraft::format::write_text(
              trace, stagecraft::format::chrome_trace(prediction.timeline, plan.plan().model + ", predicted"));
        if (!chakra.empty())
          stagecraft::interchange::write_chakra(
              chakra, stagecraft::interchange::chakra_trace(prediction.timeline, plan, graph), plan.plan().model);
        return 0;
      });
}
