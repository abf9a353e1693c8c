#include <fmt/format.h>

#include <thread>

#include "costmodel/format/files.h"
#include "costmodel/format/json.h"
#include "costmodel/progress.h"
#include "costmodel/tool.h"
#include "executor/tool_options.h"
#include "profiler/profile.h"
#include "profiler/provenance.h"

namespace {

using stagecraft::format_bytes;
using stagecraft::format_seconds;

constexpr double kMostInterruption = 0.03;

std::string times(const stagecraft::Timing& t) {
  return format_seconds(t.median) + (t.spread ? " +- " + format_seconds(*t.spread) : "");
}

void print(const stagecraft::Profile& profile) {
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
                     profile.stop == stagecraft::Stop::Precise ? "precise enough" : "time was up",
                     format_seconds(profile.sum), profile.closure() * 100);
  if (profile.interruption() > kMostInterruption) {
    out += fmt::format(
        "warning: other work on this machine interrupted the layers by {:.1f} %; their medians leave that out, the "
        "iteration does not\n",
        profile.interruption() * 100);
  }
  if (graph.slowdown.size() > 1) {
    out += "slowdown with ranks at once on this host:";
    for (std::size_t i = 0; i < graph.slowdown.size(); ++i) out += fmt::format(" {}: {:.2f}", i + 1, graph.slowdown[i]);
    out += "\n";
  }
  if (profile.unmapped > 0)
    out += fmt::format("warning: {} backward nodes could not be given to a layer\n", profile.unmapped);
  std::cerr << out;
}

}  // namespace

int main(int argc, char** argv) {
  std::string name;
  std::vector<std::string> set;
  std::string data = "synthetic";
  std::string output;
  stagecraft::ProfileOptions options;
  // Ranks of one host slow each other down, so a plan of two is predicted as it will run.
  options.concurrent = std::thread::hardware_concurrency() >= 2 ? 2 : 1;
  return stagecraft::run_tool(
      {"profile", "Runs a model forward and backward and measures every layer, in place.",
       "stagecraft profile resnet18 --microbatch 8 -o graph.json\n  stagecraft profile gpt --set layers=4 --set "
       "width=256 "
       "--set heads=4 --microbatch 2 -o graph.json\n\n" +
           stagecraft::models_text()},
      argc, argv,
      [&](CLI::App& app) {
        app.add_option("MODEL", name, "a built-in model, see below")->required();
        app.add_option("--set", set, "key=value, an option of the model; may be repeated")->allow_extra_args(false);
        app.add_option("--microbatch", options.microbatch_samples, "samples in a microbatch")
            ->capture_default_str()
            ->check(CLI::PositiveNumber);
        app.add_option("--data", data, "where samples come from")->capture_default_str();
        app.add_option("--threads", options.threads, "threads of one rank")
            ->capture_default_str()
            ->check(CLI::PositiveNumber);
        app.add_option("--concurrent", options.concurrent,
                       "measure the slowdown of up to this many ranks at once on this host")
            ->capture_default_str()
            ->check(CLI::PositiveNumber);
        app.add_option("--warmup", options.warmup, "iterations that do not count")
            ->capture_default_str()
            ->check(CLI::NonNegativeNumber);
        app.add_option("--error", options.rule.iteration_error, "relative error of the iteration at which to stop")
            ->capture_default_str()
            ->check(CLI::PositiveNumber);
        app.add_option("--max-seconds", options.rule.most_seconds, "stop measuring then in any case")
            ->capture_default_str()
            ->check(CLI::PositiveNumber);
        app.add_option("--seed", options.seed, "of weights and data")->capture_default_str();
        stagecraft::add_optimizer_options(app, options.optimizer);
        app.add_option("-o,--output", output, "where the graph goes; - is standard output");
      },
      [&] {
        stagecraft::check_can_write(output);
        const stagecraft::Model model = stagecraft::build_model(name, stagecraft::parse_settings(set));
        const auto source = stagecraft::make_data_source(data, model, options.seed);
        stagecraft::Profile profile;
        {
          stagecraft::ProgressLine line;
          profile = stagecraft::profile_model(model, *source, options, [&](const stagecraft::ProfileProgress& p) {
            line.show(fmt::format("{} {} {}, error {:.1f} %", name, p.phase, p.iteration, p.relative_error * 100));
          });
        }
        profile.graph.provenance = stagecraft::provenance_here("stagecraft-profile");
        print(profile);
        if (!output.empty()) stagecraft::write_text(output, stagecraft::graph_json(profile.graph));
        return 0;
      });
}
