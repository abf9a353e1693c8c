#include <fmt/format.h>
#include <fmt/ranges.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <iostream>
#include <thread>

#include "costmodel/command/tool.h"
#include "costmodel/format/files/files.h"
#include "costmodel/format/files/outputs.h"
#include "costmodel/format/graph_json.h"
#include "costmodel/text/progress.h"
#include "costmodel/text/units_text.h"
#include "executor/device/device.h"
#include "executor/device/dtype.h"
#include "executor/device/machine/provenance.h"
#include "executor/model/model.h"
#include "executor/tool_options.h"
#include "profiler/kernels/writers.h"
#include "profiler/profile.h"
#include "profiler/rank_processes.h"
#include "profiler/structure.h"
#include "profiler/subject/subject.h"

namespace {

using stagecraft::format_bytes;
using stagecraft::format_seconds;

constexpr double kMostInterruption = 0.03;
constexpr double kLaunchBound = 0.2;

const std::vector<std::string> kClocks{"host", "cupti", "events"};
const std::vector<std::string> kTypes{"float32", "bfloat16", "float16"};

struct Options {
  std::string model;
  std::vector<std::string> set;
  std::string data = "synthetic";
  std::string device = "cpu";
  std::string clock;
  std::string type = "float32";
  bool allow_tf32 = false;
  std::vector<std::int64_t> microbatches;  ///< empty until check(): not given
  bool default_microbatch = false;
  bool accept_untrusted = false;
  bool structure = false;
  bool without_work = false;
  std::string trace;
  std::string csv;
  std::string output;
  bool force = false;
  std::int64_t as_rank = 0;  ///< samples of the microbatch over which it iterates as a concurrent rank; 0: profile
  std::vector<std::string> words;  ///< of the command line
  stagecraft::profiler::ProfileOptions profile;
};

std::string times(const stagecraft::Timing& t) {
  return format_seconds(t.median) + (t.spread ? " +- " + format_seconds(*t.spread) : "");
}

double percent(std::int64_t part, std::int64_t whole) {
  return whole == 0 ? 100 : 100 * static_cast<double>(part) / static_cast<double>(whole);
}

std::string quality_text(const stagecraft::profiler::Profile& profile) {
  const stagecraft::ProfileQuality& quality = *profile.graph.quality;
  std::string out = fmt::format(
      "profiled with {}: iteration {}, {:+.1f} % compared with an unprofiled one; shares of {} steps and {:.3f} % "
      "unattributed add up to {}\n",
      quality.clock, times(quality.watched), profile.overhead() * 100, quality.steps,
      percent(quality.unattributed_ns, quality.watched_ns),
      format_seconds(stagecraft::Seconds(static_cast<double>(quality.watched_ns) * 1e-9)));
  if (quality.work > 0) {
    out += fmt::format(
        "coverage: {} of {} kernels, copies and memsets, {:.4f} % of their time; the device waits for the host {:.1f} "
        "% of a step\n",
        quality.work_attributed, quality.work, percent(quality.work_attributed_ns, quality.work_ns),
        percent(quality.host_wait_ns, quality.watched_ns));
    std::int64_t busy = 0;
    std::int64_t share = 0;
    for (const stagecraft::Layer& layer : profile.graph.layers) {
      for (const auto* time : {&layer.forward_share, &layer.backward_share}) {
        busy += *time ? (*time)->busy_ns : 0;
        share += *time ? (*time)->share_ns : 0;
      }
    }
    if (static_cast<double>(share) > (1 + kLaunchBound) * static_cast<double>(busy)) {
      out += fmt::format(
          "the step is launch-bound: {:.0f} % longer than its kernels; larger microbatches, fewer operations or CUDA "
          "graphs would help\n",
          percent(share - busy, busy));
    }
  }
  out += fmt::format(
      "memory: parameters, gradients, optimizer, saved and workspace add up to {}, the allocator's peak is {} "
      "({:+.1f} %)\n",
      format_bytes(quality.summed_peak_bytes), format_bytes(quality.allocator_peak_bytes),
      percent((quality.summed_peak_bytes - quality.allocator_peak_bytes).value, quality.allocator_peak_bytes.value));
  return out;
}

void print(const stagecraft::profiler::Profile& profile) {
  const stagecraft::Graph& graph = profile.graph;
  std::string out = fmt::format("{:<28} {:<22} {:>22} {:>22} {:>12} {:>12}\n", "layer", "kind", "forward", "backward",
                                "activation", "parameters");
  for (const stagecraft::Layer& layer : graph.layers) {
    if (stagecraft::is_input(layer)) continue;
    out += fmt::format("{:<28} {:<22} {:>22} {:>22} {:>12} {:>12}\n", layer.name, layer.kind, times(layer.forward),
                       times(layer.backward), format_bytes(stagecraft::activation_bytes(layer)),
                       format_bytes(layer.parameter_bytes));
  }
  out += fmt::format("iteration without the profiler {} ({} samples, {}); sum of layers {}, difference {:+.1f} %\n",
                     times(*graph.iteration), graph.iteration->count,
                     profile.stop == stagecraft::profiler::Stop::Precise ? "precise enough" : "time limit reached",
                     format_seconds(profile.sum), profile.closure() * 100);
  out += quality_text(profile);
  if (graph.slowdown.size() > 1) {
    out += "slowdown by number of ranks on this host:";
    for (std::size_t i = 0; i < graph.slowdown.size(); ++i) out += fmt::format(" {}: {:.2f}", i + 1, graph.slowdown[i]);
    out += "\n";
  }
  if (!profile.cut.empty()) {
    out += fmt::format("time limit (--max-seconds) reached after {:.1f} s; cut short or skipped: {}\n", profile.seconds,
                       fmt::join(profile.cut, ", "));
  }
  std::cerr << out;
  if (profile.interruption() > kMostInterruption) {
    stagecraft::warn("stagecraft-profile",
                     fmt::format("other processes interrupted the layers by {:.1f} %; medians of layers exclude this, "
                                 "the iteration includes it",
                                 profile.interruption() * 100));
  }
  stagecraft::warn_if_unsteady("stagecraft-profile", graph.conditions);
  for (const std::string& reason : graph.quality->reasons) std::cerr << "not trusted: " + reason + "\n";
}

/// graph.json for one microbatch, graph-8.json for several.
std::string path_of(const Options& o, const std::string& output, std::int64_t samples) {
  if (output.empty() || o.microbatches.size() == 1) return output;
  const std::filesystem::path path(output);
  return (path.parent_path() / (path.stem().string() + "-" + std::to_string(samples) + path.extension().string()))
      .string();
}

void check(Options& o) {
  o.default_microbatch = o.microbatches.empty();
  if (o.default_microbatch) o.microbatches = {1};
  stagecraft::usage("--optimizer", [&] { stagecraft::stage::validate(o.profile.optimizer); });
  stagecraft::usage("--parameter-dtype", [&] { validate(o.profile.optimizer.types, o.type); });
  const bool cpu = o.device == "cpu";
  if (o.clock.empty()) o.clock = cpu ? "host" : "cupti";
  if (cpu != (o.clock == "host")) {
    throw CLI::ValidationError(fmt::format("--clock {} with --device {}", o.clock, o.device),
                               cpu ? "expected host" : "expected cupti or events");
  }
  if (cpu && o.allow_tf32) throw CLI::ValidationError("--allow-tf32", "needs a GPU: use --device cuda");
  if (o.microbatches.size() > 1 && o.output == "-")
    throw CLI::ValidationError("-o - with several microbatches",
                               "expected a file name; each graph is written to a separate file");
  std::vector<stagecraft::format::OutputFile> outputs;
  for (const std::int64_t samples : o.microbatches) {
    if (std::ranges::count(o.microbatches, samples) > 1)
      throw CLI::ValidationError("--microbatch", fmt::format("names {} twice", samples));
    outputs.push_back({path_of(o, o.output, samples), "stagecraft.graph"});
    outputs.push_back({path_of(o, o.trace, samples), "Chrome trace"});
    outputs.push_back({path_of(o, o.csv, samples), "table of activities"});
  }
  stagecraft::format::check_outputs(stagecraft::files_of(o.model, o.data), outputs, o.force);
}

std::vector<std::string> layer_names(const stagecraft::model::Model& model) {
  std::vector<std::string> out;
  for (const stagecraft::model::LayerSpec& layer : model.layers) out.push_back(layer.name);
  return out;
}

/// Layers that had to be merged, in a few lines.
void print_merged(const stagecraft::model::Model& model) {
  constexpr std::size_t kMost = 5;
  std::size_t told = 0;
  for (const auto& [name, reason] : model.merged) {
    if (told++ == kMost) {
      std::cerr << fmt::format("note: and {} more\n", model.merged.size() - kMost);
      break;
    }
    std::cerr << fmt::format("note: \"{}\" {}\n", name, reason);
  }
}

/// "36 layers, 6658 million parameters, 1.767e+05 GFLOP for a microbatch of 2", without the last part if not counted.
std::string size_text(const stagecraft::model::Model& model, const stagecraft::Graph& graph, std::int64_t samples) {
  stagecraft::Work work;
  for (const stagecraft::Layer& layer : graph.layers) {
    if (layer.forward_work) work += *layer.forward_work;
    if (layer.backward_work) work += *layer.backward_work;
  }
  const double millions = static_cast<double>(stagecraft::model::parameter_count(model)) / 1e6;
  std::string out = fmt::format("{} layers, {:.4g} million parameters", model.layers.size(), millions);
  if (work.operators > 0) out += fmt::format(", {:.4g} GFLOP for a microbatch of {}", work.flops.value / 1e9, samples);
  return out;
}

/// Layers, shapes and bytes, operations and bytes moved; nothing is measured.
int write_structure(const Options& o, const stagecraft::model::Model& model,
                    const stagecraft::data::DataSource& source) {
  const stagecraft::stage::ComputePlace placement{stagecraft::device::open_device(o.device, o.allow_tf32),
                                                  stagecraft::device::dtype_of(o.type), o.profile.optimizer.types};
  for (std::int64_t samples : o.microbatches) {
    // Two by default, or what the model allows.
    if (o.default_microbatch) samples = std::clamp<std::int64_t>(2, model.least_samples, model.most_samples);
    stagecraft::model::check_samples(model, samples);
    stagecraft::ProgressLine line;
    stagecraft::profiler::StructureOptions options{o.profile.optimizer, o.profile.seed, placement, !o.without_work};
    options.progress = [&](const char* what, int layer) {
      line.show(fmt::format("{} of {}: {}, layer {} of {}", o.model, samples, what, layer + 1, model.layers.size()));
    };
    const auto batch = source.batch(0, 0, 1, samples, stagecraft::profiler::inputs_read(model));
    stagecraft::profiler::Structure structure = stagecraft::profiler::structure_of(model, batch, samples, options);
    line.clear();  // the graph may go to the same terminal
    if (!structure.ran.empty())
      std::cerr << fmt::format("note: {} ran on this processor, because {}\n", o.model, structure.ran);
    std::cerr << o.model + ": " + size_text(model, structure.graph, samples) + "\n";
    structure.graph.provenance = stagecraft::device::provenance_here("stagecraft-profile", placement.device);
    stagecraft::sign(structure.graph.provenance);
    stagecraft::format::write_text(path_of(o, o.output.empty() ? "-" : o.output, samples),
                                   stagecraft::format::graph_json(structure.graph));
  }
  return 0;
}

/// A profile of microbatches of `samples`, with a progress line meanwhile.
stagecraft::profiler::Profile profile_microbatch(const Options& o, const stagecraft::model::Model& model,
                                                 const stagecraft::data::DataSource& source,
                                                 stagecraft::profiler::KernelTracer* tracer,
                                                 stagecraft::profiler::ProfileOptions options) {
  const std::int64_t samples = options.microbatch_samples;
  options.rank_command = o.words;
  options.rank_command.front() = "/proc/self/exe";
  options.rank_command.insert(options.rank_command.end(), {"--as-rank", std::to_string(samples)});
  stagecraft::ProgressLine line;
  const auto show = [&](const stagecraft::profiler::ProfileProgress& p) {
    line.show(
        fmt::format("{} of {}: {} {}, error {:.1f} %", o.model, samples, p.phase, p.iteration, p.relative_error * 100));
  };
  stagecraft::profiler::Profile out = stagecraft::profiler::profile_model(model, source, options, show, tracer);
  out.graph.provenance = stagecraft::device::provenance_here("stagecraft-profile", options.placement.device);
  stagecraft::sign(out.graph.provenance);
  out.graph.device = stagecraft::device::measured_device_here(options.placement.device);
  return out;
}

/// Writes the graph, and the trace and the table if requested.
void write_files(const Options& o, const stagecraft::model::Model& model, const stagecraft::profiler::Profile& profile,
                 std::int64_t samples) {
  const auto write = [&](const std::string& output, const auto& text) {
    if (!output.empty()) stagecraft::format::write_text(path_of(o, output, samples), text());
  };
  write(o.output, [&] { return stagecraft::format::graph_json(profile.graph); });
  write(o.trace, [&] {
    return stagecraft::profiler::chrome_trace(profile.trace, layer_names(model),
                                              fmt::format("{}, microbatch {}", o.model, samples));
  });
  write(o.csv, [&] { return stagecraft::profiler::activities_csv(profile.trace, layer_names(model)); });
}

/// Iterates as one of several concurrent ranks, for the profile that started this process.
int iterate_as_rank(const Options& o, const stagecraft::model::Model& model,
                    const stagecraft::data::DataSource& source) {
  stagecraft::profiler::ProfileOptions options = o.profile;
  options.microbatch_samples = o.as_rank;
  stagecraft::profiler::serve_iterations(model,
                                         source.batch(0, 0, 1, o.as_rank, stagecraft::profiler::inputs_read(model)),
                                         options, STDIN_FILENO, STDOUT_FILENO);
  return 0;
}

int run(Options o) {
  if (o.as_rank == 0) check(o);
  stagecraft::device::prepare_device(o.device);  // reading a model may compute
  const stagecraft::model::Model model =
      stagecraft::build_model_at("MODEL", o.model, stagecraft::parse_settings(o.set));
  for (const std::int64_t samples : o.microbatches) stagecraft::model::check_samples(model, samples);
  if (o.as_rank == 0) print_merged(model);
  const auto source = stagecraft::data::make_data_source(o.data, model, o.profile.seed);
  if (o.structure) return write_structure(o, model, *source);
  if (o.as_rank > 0) {
    o.profile.placement = {stagecraft::device::open_device(o.device, o.allow_tf32),
                           stagecraft::device::dtype_of(o.type), o.profile.optimizer.types};
    return iterate_as_rank(o, model, *source);
  }
  o.profile.placement = {stagecraft::device::open_device(o.device, o.allow_tf32), stagecraft::device::dtype_of(o.type),
                         o.profile.optimizer.types};
  std::unique_ptr<stagecraft::profiler::KernelTracer> tracer;
  if (o.clock == "cupti")
    tracer = stagecraft::profiler::make_late_tracer("cupti", stagecraft::profiler::make_cupti_tracer);
  std::vector<stagecraft::profiler::ProfileOptions> sizes(o.microbatches.size(), o.profile);
  for (std::size_t i = 0; i < sizes.size(); ++i) {
    sizes[i].microbatch_samples = o.microbatches[i];
    if (tracer && sizes.size() > 1)  // before the first size has made one
      sizes[i].without_tracer = stagecraft::profiler::times_without_tracer(model, *source, sizes[i]);
  }
  bool trusted = true;
  std::string summary = fmt::format("{:>10} {:>22} {:>14}\n", "microbatch", "iteration", "a sample");
  for (std::size_t i = 0; i < sizes.size(); ++i) {
    const std::int64_t samples = sizes[i].microbatch_samples;
    const stagecraft::profiler::Profile profile = profile_microbatch(o, model, *source, tracer.get(), sizes[i]);
    print(profile);
    trusted = trusted && profile.graph.quality->trusted;
    const stagecraft::Timing& iteration = *profile.graph.iteration;
    summary += fmt::format("{:>10} {:>22} {:>14}\n", samples, times(iteration),
                           format_seconds(iteration.median / static_cast<double>(samples)));
    write_files(o, model, profile, samples);
  }
  if (o.microbatches.size() > 1) std::cerr << summary;
  if (trusted || o.accept_untrusted) return 0;
  std::cerr << "the profile is not trusted, see above, so the exit status is 1; with --accept-untrusted it is 0\n";
  return 1;
}

/// Options for what is profiled, and where.
void add_model_options(CLI::App& app, Options& o) {
  app.add_option("MODEL", o.model,
                 "a built-in model (see below) or a model file, such as model.pt2 from stagecraft export-model")
      ->required();
  app.add_option("--set", o.set, "model option key=value; repeatable")
      ->type_name("NAME=VALUE")
      ->allow_extra_args(false);
  app.add_option("--data", o.data, "data source")->capture_default_str()->check(stagecraft::data_name());
  app.add_option("--microbatch", o.microbatches,
                 "samples per microbatch; a list such as 1,2,4 writes one graph each: graph-1.json, graph-2.json, ...")
      ->delimiter(',')
      ->allow_extra_args(false)
      ->default_str("1, with --structure 2")
      ->transform(stagecraft::integer<std::int64_t>(1));
  app.add_option("--device", o.device, "cpu, cuda or cuda:N")->capture_default_str()->check(stagecraft::device_name());
  app.add_option("--clock", o.clock,
                 "what times the layers: host (CPU; default there), cupti (GPU, each kernel; default there) or events "
                 "(GPU, between layers)")
      ->check(stagecraft::one_of("clock", kClocks));
  app.add_option("--dtype", o.type, "float32; bfloat16 or float16 use autocast")
      ->capture_default_str()
      ->check(stagecraft::one_of("dtype", kTypes));
  const auto add_type = [&](const char* name, stagecraft::StateType& type, const char* help) {
    app.add_option_function<std::string>(
           name, [&type](const std::string& word) { type = stagecraft::state_type(word); }, help)
        ->default_str("float32")
        ->check(stagecraft::one_of("dtype", {"float32", "bfloat16"}));
  };
  stagecraft::StateTypes& types = o.profile.optimizer.types;
  add_type("--parameter-dtype", types.parameters,
           "type of the parameters. bfloat16, with --dtype bfloat16: the optimizer updates float32 master values and "
           "rounds them into the parameters");
  add_type("--gradient-dtype", types.gradients,
           "type in which gradients are added up over microbatches and replicas; bfloat16 only for parameters in "
           "bfloat16");
  add_type("--moment-dtype", types.moments, "type of the optimizer's moments; updates compute in float32");
  app.add_flag("--allow-tf32", o.allow_tf32,
               "let GPUs round the inputs of float32 matrix products, convolutions and recurrent layers to TF32");
  app.add_option("--seed", o.profile.seed, "random seed of weights and data")
      ->capture_default_str()
      ->transform(stagecraft::integer<decltype(o.profile.seed)>(0));
  stagecraft::add_import_options(app, o.set);
}

/// Options for how it is measured.
void add_measurement_options(CLI::App& app, Options& o) {
  const stagecraft::OptionGroup group(app, "Measurement");
  app.add_flag("--isolated", o.profile.isolated, "also measure each layer alone");
  CLI::Option* const structure = app.add_flag("--structure", o.structure,
                                              "measure no times: write layers, shapes, bytes and counted work, for "
                                              "stagecraft estimate. On a CPU the model may be larger than memory");
  app.add_flag("--without-work", o.without_work,
               "with --structure: run one forward for shapes only; do not count operations and bytes")
      ->needs(structure);
  stagecraft::add_accept_untrusted(app, o.accept_untrusted, "exit with 0 even if the profile is not trusted");
  app.add_option("--threads", o.profile.threads, "threads per rank")
      ->capture_default_str()
      ->transform(stagecraft::integer(1, stagecraft::kMostAtOnce));
  app.add_option("--concurrent", o.profile.concurrent,
                 "measure the slowdown of up to this many concurrent ranks on this host (CPU)")
      ->capture_default_str()
      ->transform(stagecraft::integer(1, stagecraft::kMostAtOnce));
  app.add_option("--as-rank", o.as_rank)->group("");  // not shown: profile starts itself with it
  app.add_option("--warmup", o.profile.warmup, "warm-up iterations")
      ->capture_default_str()
      ->transform(stagecraft::integer<decltype(o.profile.warmup)>(0));
  app.add_option("--error", o.profile.rule.iteration_error,
                 "stop when the relative error of the iteration is this small")
      ->capture_default_str()
      ->transform(stagecraft::number_above(0));
  app.add_option("--max-seconds", o.profile.most_seconds,
                 "time limit of each microbatch's profile; what it cuts short or skips is listed")
      ->default_str(
          "30; for a model with long iterations, as long as 50 of them take and 25 for each rank of "
          "--concurrent, but at most 300")
      ->transform(stagecraft::number_above(0))
      ->each([&o](const std::string&) { o.profile.most_seconds_if_slow = 0; });
  stagecraft::add_optimizer_options(app, o.profile.optimizer);
}

/// Options for where the results go.
void add_output_options(CLI::App& app, Options& o) {
  app.add_option("--trace", o.trace,
                 "write a Chrome trace of the last profiled steps, for ui.perfetto.dev: kernels by stream and layer; "
                 "on a CPU, layers")
      ->type_name("FILE");
  app.add_option("--csv", o.csv, "write the activities of --trace as CSV")->type_name("FILE");
  app.add_option("-o,--output", o.output, "output file for the graph; - is standard output")->type_name("FILE");
  stagecraft::add_force_option(app, o.force);
}

}  // namespace

int main(int argc, char** argv) {
  Options o;
  o.words.assign(argv, argv + argc);
  o.profile.most_seconds = 30;
  o.profile.most_seconds_if_slow = 300;
  // Ranks on one host slow each other down; measuring two lets a plan of two be predicted correctly.
  o.profile.concurrent = std::thread::hardware_concurrency() >= 2 ? 2 : 1;
  return stagecraft::run_computing_tool(
      {"profile", "Runs a model forward and backward and measures each layer in place.",
       "stagecraft profile resnet18 --microbatch 8 -o graph.json\n"
       "  stagecraft profile model.pt2 --layers auto --microbatch 8 -o graph.json\n  stagecraft profile gpt --set "
       "layers=4 --set "
       "width=256 "
       "--set heads=4 --microbatch 2 -o graph.json\n  stagecraft profile resnet50 --microbatch 16,32,64 --device cuda "
       "--dtype bfloat16 -o graph.json\n\n" +
           stagecraft::models_text()},
      argc, argv,
      [&](CLI::App& app) {
        add_model_options(app, o);
        add_measurement_options(app, o);
        add_output_options(app, o);
      },
      [&] { return run(o); });
}
