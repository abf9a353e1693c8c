#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <iostream>
#include <set>
#include <utility>

#include "costmodel/accuracy/intervals.h"
#include "costmodel/command/tool.h"
#include "costmodel/errors.h"
#include "costmodel/format/files/files.h"
#include "costmodel/format/files/outputs.h"
#include "costmodel/format/graph_json.h"
#include "costmodel/prediction/cards.h"
#include "costmodel/prediction/device_match.h"
#include "costmodel/prediction/estimate.h"
#include "costmodel/prediction/stage_costs.h"
#include "costmodel/text/units_text.h"

namespace {

using stagecraft::DeviceKind;
using stagecraft::Graph;
using stagecraft::Machine;
using stagecraft::MeasuredDevice;
using stagecraft::RooflineReference;

/// What the command line says of one device; 0 and empty: not given.
struct DeviceOptions {
  std::string name;
  std::string math;
  double peak = 0;
  double bandwidth = 0;
};

struct EstimateOptions {
  std::string graph;
  std::string output;
  std::string from_profile;
  std::optional<std::int64_t> microbatch;
  std::vector<std::string> more_graphs;
  DeviceOptions target;
  DeviceOptions source;
  std::optional<double> operator_s;
  int host_processors = 0;
  bool list = false;
  bool force = false;
};

/// The kind that a device's name tells, as for a topology.
DeviceKind kind_of(const std::string& name) {
  stagecraft::Topology topology;
  topology.device.name = name;
  return stagecraft::described_device(topology).kind;
}

/// A device whose peak and bandwidth were given by hand.
Machine machine_by_hand(const DeviceOptions& o, const std::string& dtype, bool tf32) {
  const DeviceKind kind = kind_of(o.name);
  const bool half = !dtype.empty() && dtype != "float32";
  return {{o.name, kind, 0},
          half   ? dtype
          : tf32 ? "tf32"
                 : "float32",
          stagecraft::FlopsPerSecond(o.peak),
          kind != DeviceKind::Processor && (half || tf32),
          stagecraft::BytesPerSecond(o.bandwidth),
          stagecraft::default_time_per_operator(kind)};
}

/// `prefix`: "--" or "--from-", of the options that describe the device.
Machine machine_of(const DeviceOptions& o, const std::string& prefix, const std::string& dtype, bool tf32) {
  if (o.peak > 0 && o.bandwidth > 0) return machine_by_hand(o, dtype, tf32);
  const std::string remedy = fmt::format(
      "; for another device give {0}peak-flops-per-s and {0}memory-bandwidth-bytes-per-s, for the table of cards "
      "--list",
      prefix);
  Machine out = [&] {
    try {
      return stagecraft::machine_of(stagecraft::find_card(o.name), dtype, tf32);
    } catch (const std::invalid_argument& e) {
      throw stagecraft::InputError(stagecraft::kind_of(e), e.what() + remedy);
    }
  }();
  if (o.peak > 0) out.peak = stagecraft::FlopsPerSecond(o.peak);
  if (o.bandwidth > 0) out.bandwidth = stagecraft::BytesPerSecond(o.bandwidth);
  return out;
}

/// The command that writes a graph of the same model and microbatch to `output`, with `option` if it is not empty.
std::string profile_command(const Graph& graph, const std::string& option, const std::string& output) {
  std::string out = "stagecraft profile " + (graph.name.empty() ? "MODEL" : graph.name);
  for (const auto& [key, value] : graph.options) out += fmt::format(" --set {}={}", key, value);
  if (graph.microbatch_samples) out += fmt::format(" --microbatch {}", *graph.microbatch_samples);
  if (!graph.dtype.empty() && graph.dtype != "float32") out += " --dtype " + graph.dtype;
  if (!option.empty()) out += " " + option;
  return out + " -o " + (output == "-" ? "graph.json" : output);
}

/// What to do if nothing is known of a layer of `graph`; `unused` says why there are times that do not count.
std::string remedy(const EstimateOptions& o, const Graph& graph, const std::string& unused) {
  std::string out = unused.empty() ? "; " : fmt::format(": {}; or ", unused);
  out += "count them with " + profile_command(graph, "--structure", has_times(graph) ? "structure.json" : o.graph);
  return unused.empty() ? out + ", or give a measured profile of the same model as --from-profile" : out;
}

/// Whether `graph` has a layer that is not in `profile`, so that its efficiency is learned from others.
bool has_other_layers(const Graph& graph, const Graph& profile) {
  std::set<std::pair<std::string, std::string>> measured;
  for (const stagecraft::Layer& layer : profile.layers) measured.emplace(layer.id, layer.kind);
  return std::ranges::any_of(graph.layers, [&](const stagecraft::Layer& layer) {
    return !is_input(layer) && !measured.contains({layer.id, layer.kind});
  });
}

bool has_work(const stagecraft::Layer& layer) { return layer.forward_work && layer.backward_work; }

/// What is missing where operations and bytes were not counted, though there is an estimate.
void note_missing_work(const EstimateOptions& o, const Graph& graph, const std::optional<RooflineReference>& reference,
                       std::vector<std::string>& notes) {
  const auto bare = std::ranges::count_if(
      graph.layers, [](const stagecraft::Layer& layer) { return !is_input(layer) && !has_work(layer); });
  if (bare > 0) {
    notes.push_back(fmt::format(
        "{} of the graph's layers {} no counted operations and bytes: their times are scaled by the ratio of the "
        "devices, with wider intervals",
        bare, bare == 1 ? "has" : "have"));
  }
  if (reference && std::ranges::none_of(reference->graph.layers, has_work) &&
      has_other_layers(graph, reference->graph)) {
    notes.push_back(fmt::format(
        "{} has no counted operations and bytes, so it does not say how efficient its device is: layers that are not "
        "in it get the assumed efficiencies",
        o.from_profile));
  }
}

/// The profile with the measured times, if there is one, and its device; `notes` says what was assumed, `unused` why
/// measured times are not used.
std::optional<RooflineReference> reference_of(const EstimateOptions& o, const Graph& graph,
                                              std::vector<std::string>& notes, std::string& unused) {
  const std::string path = o.from_profile.empty() ? o.graph : o.from_profile;
  RooflineReference out{o.from_profile.empty() ? graph : stagecraft::format::read_graph(path), {}};
  if (!has_times(out.graph)) {
    if (!o.from_profile.empty()) {
      throw stagecraft::InputError(
          stagecraft::ErrorKind::NoTimes,
          path + ": has no measured times; measure the model with " + profile_command(out.graph, "", path));
    }
    notes.emplace_back("the graph has no times: efficiencies are assumed");
    return std::nullopt;
  }
  if (out.graph.estimate)
    throw std::invalid_argument(path + ": its times are estimates already; start from the measured profile");
  if (const std::string text = distrust_text(out.graph); !text.empty()) notes.push_back(path + ": " + text);
  DeviceOptions source = o.source;
  if (source.name.empty()) source.name = stagecraft::measured_device(out.graph).name;
  const bool stated = !source.math.empty() || out.graph.allow_tf32.has_value();
  const bool tf32 = source.math.empty() ? out.graph.allow_tf32.value_or(false) : source.math == "tf32";
  try {
    out.machine = machine_of(source, "--from-", out.graph.dtype, tf32);
  } catch (const std::invalid_argument& e) {
    if (!o.source.name.empty()) throw CLI::ValidationError("--from-device", e.what());
    unused = fmt::format(
        "the times of {} are not used, because the peak rates of their device are unknown ({}); give "
        "--from-peak-flops-per-s and --from-memory-bandwidth-bytes-per-s, or --from-device",
        path, source.name.empty() ? "it has no name" : "\"" + source.name + "\"");
    notes.push_back(unused);
    return std::nullopt;
  }
  if (o.operator_s) out.machine.time_per_operator = stagecraft::Seconds(*o.operator_s);
  if (!stated && out.machine.math == "float32" && out.machine.device.kind == DeviceKind::Gpu)
    notes.emplace_back("the profile does not say whether TF32 was allowed: assumed not, see --from-math");
  if (const std::string text = impossible_rate(out); !text.empty())
    notes.push_back(text + ": another --from-math or --from-device would fit better");
  return out;
}

std::string machine_text(const Machine& machine) {
  return fmt::format("{}, {}: {:.4g} TFLOP/s, {:.4g} GB/s", machine.device.name, machine.math,
                     machine.peak.value / 1e12, machine.bandwidth.value / 1e9);
}

/// A time of the whole graph with its 90 % interval.
std::string time_text(const Graph& graph) {
  stagecraft::Seconds sum;
  double spread = 0;
  for (const stagecraft::Layer& layer : graph.layers) {
    for (const stagecraft::Timing& timing : {layer.forward, layer.backward}) {
      sum += timing.median;
      spread += timing.median.value * timing.log_spread.value_or(0);
    }
  }
  if (sum <= stagecraft::Seconds(0)) return format_seconds(sum);
  const double width = std::exp(1.6448536269514722 * spread / sum.value);
  return fmt::format("{} ({} to {})", format_seconds(sum), format_seconds(sum / width), format_seconds(sum * width));
}

void print(const Graph& graph, const Machine& target, const std::optional<RooflineReference>& reference,
           const std::vector<std::string>& notes) {
  std::string out = "estimated for " + machine_text(target) + "\n";
  if (reference) out += "from times on " + machine_text(reference->machine) + "\n";
  out += "forward and backward of a microbatch, with its 90 % interval: " + time_text(graph);
  if (reference && reference->graph.name == graph.name)
    out += fmt::format("; measured: {}",
                       format_seconds(compute_time(reference->graph) * stagecraft::closure_factor(reference->graph)));
  out += "\nbytes are those of the graph; workspace and what attention keeps may differ on another device\n";
  for (const std::string& note : notes) out += "note: " + note + "\n";
  std::cerr << out;
}

/// The graph at another microbatch size.
int resize(const EstimateOptions& o) {
  if (!o.target.name.empty() || !o.from_profile.empty()) {
    throw CLI::ValidationError("--microbatch",
                               "makes times of the same device; estimate those of another device from its output");
  }
  std::vector<std::string> inputs{o.graph};
  inputs.insert(inputs.end(), o.more_graphs.begin(), o.more_graphs.end());
  stagecraft::format::check_outputs(inputs, {{o.output, "stagecraft.graph"}}, o.force);
  std::vector<Graph> profiles;
  std::string notes;
  for (const std::string& path : inputs) {
    profiles.push_back(stagecraft::format::read_graph(path));
    try {
      check_has_times(profiles.back());
    } catch (const std::invalid_argument& e) {
      throw stagecraft::InputError(stagecraft::kind_of(e), path + ": " + e.what());
    }
    if (const std::string text = distrust_text(profiles.back()); !text.empty())
      notes += fmt::format("note: {}: {}\n", path, text);
  }
  stagecraft::ResizedGraph out = [&] {
    try {
      return graph_of_samples(std::move(profiles), *o.microbatch);
    } catch (const std::invalid_argument& e) {
      throw stagecraft::InputError(stagecraft::kind_of(e), fmt::format("{}: {}", fmt::join(inputs, ", "), e.what()));
    }
  }();
  std::cerr << fmt::format("microbatches of {} samples, {}\nforward and backward of a microbatch: {}{}\n{}",
                           *o.microbatch, out.origin, out.extrapolated ? "~" : "",
                           format_seconds(compute_time(out.graph)), notes);
  out.graph.device = stagecraft::measured_device(out.graph);  // older profiles name it in their provenance only
  stagecraft::sign(out.graph.provenance);
  if (!o.output.empty()) stagecraft::format::write_text(o.output, stagecraft::format::graph_json(out.graph));
  return 0;
}

int run(const EstimateOptions& o) {
  if (o.list) {
    stagecraft::format::write_text("-", stagecraft::cards_text());
    return 0;
  }
  if (o.graph.empty()) throw CLI::RequiredError("GRAPH");
  if (o.microbatch) return resize(o);
  if (!o.more_graphs.empty()) throw CLI::ValidationError("--more-graphs", "is only for --microbatch");
  if (o.target.name.empty()) throw CLI::RequiredError("--device or --microbatch");
  std::vector<std::string> inputs{o.graph};
  if (!o.from_profile.empty()) inputs.push_back(o.from_profile);
  stagecraft::format::check_outputs(inputs, {{o.output, "stagecraft.graph"}}, o.force);
  const Graph graph = stagecraft::format::read_graph(o.graph);
  std::vector<std::string> notes;
  std::string unused;
  const std::optional<RooflineReference> reference = reference_of(o, graph, notes, unused);
  const bool tf32 =
      o.target.math.empty() ? (reference ? reference->machine.math == "tf32" : false) : o.target.math == "tf32";
  Machine target = stagecraft::usage("--device", [&] { return machine_of(o.target, "--", graph.dtype, tf32); });
  target.device.host_processors = o.host_processors;
  if (o.operator_s) target.time_per_operator = stagecraft::Seconds(*o.operator_s);
  Graph out = [&] {
    try {
      return stagecraft::estimated(graph, target, reference);
    } catch (const std::invalid_argument& e) {
      throw stagecraft::InputError(stagecraft::kind_of(e), o.graph + ": " + e.what() + remedy(o, graph, unused));
    }
  }();
  note_missing_work(o, graph, reference, notes);
  print(out, target, reference, notes);
  stagecraft::sign(out.provenance);
  if (!o.output.empty()) stagecraft::format::write_text(o.output, stagecraft::format::graph_json(out));
  return 0;
}

/// `device`: what the help calls it; `math`: its default.
void add_device_options(CLI::App& app, const std::string& prefix, const std::string& device, const std::string& math,
                        DeviceOptions& o) {
  app.add_option(prefix + "math", o.math,
                 fmt::format("float32 arithmetic on {}: float32 or tf32 (default: {})", device, math))
      ->check(stagecraft::one_of("math", {"float32", "tf32"}));
  app.add_option(prefix + "peak-flops-per-s", o.peak, fmt::format("peak rate of {} (default: from the table)", device))
      ->transform(stagecraft::number_above(0));
  app.add_option(prefix + "memory-bandwidth-bytes-per-s", o.bandwidth,
                 fmt::format("memory bandwidth of {} (default: from the table)", device))
      ->transform(stagecraft::number_above(0));
}

}  // namespace

int main(int argc, char** argv) {
  EstimateOptions o;
  return stagecraft::run_tool(
      {"estimate",
       "Estimates a graph's times on a device that you do not have, from its times on another device or from "
       "operations and bytes alone; or at a microbatch size that was not measured, from those that were.",
       "stagecraft estimate graph.json --device H200 --math tf32 -o h200.json\n"
       "  stagecraft estimate structure.json --from-profile graph.json --device A100-SXM-80GB -o a100.json\n"
       "  stagecraft estimate graph.json --device \"AMD EPYC 9654\" --peak-flops-per-s 5.4e12 "
       "--memory-bandwidth-bytes-per-s 461e9 -o epyc.json\n"
       "  stagecraft estimate graph-4.json --more-graphs graph-16.json --microbatch 8 -o graph-8.json\n"
       "  stagecraft estimate --list"},
      argc, argv,
      [&](CLI::App& app) {
        app.add_option("GRAPH", o.graph, "graph.json of stagecraft profile; - is standard input");
        app.add_option(
            "--device", o.target.name,
            "a card from the table (--list), or the name of another device together with its peak and bandwidth");
        app.add_option("-o,--output", o.output, "output file; - is standard output")->type_name("FILE");
        app.add_option(
               "--microbatch", o.microbatch,
               "instead of --device: times for microbatches of this many samples, from profiles with other sizes")
            ->transform(stagecraft::integer(1))
            ->type_name("SAMPLES");
        app.add_option("--more-graphs", o.more_graphs, "profiles of the same model with microbatches of other sizes")
            ->type_name("GRAPH ...");
        app.add_option("--from-profile", o.from_profile,
                       "profile from which each layer's efficiency is learned; default: GRAPH, if it has times")
            ->type_name("FILE");
        app.add_option("--from-device", o.source.name,
                       "device that was profiled, if the profile's name for it is not in the table");
        add_device_options(app, "--", "the target device", "as in the profile", o.target);
        add_device_options(app, "--from-", "the device that was profiled", "as the profile says, else float32",
                           o.source);
        app.add_option("--operator-s", o.operator_s, "seconds to start an operator; default: 5e-6 on a GPU, else 2e-6")
            ->transform(stagecraft::number_from(0, 1));
        app.add_option("--host-processors", o.host_processors, "CPUs of the host, if the target is a CPU")
            ->transform(stagecraft::integer(1));
        app.add_flag("--list", o.list, "print the table of cards and exit");
        stagecraft::add_force_option(app, o.force);
      },
      [&] { return run(o); });
}
