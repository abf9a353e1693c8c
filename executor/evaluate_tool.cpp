#include <ATen/Parallel.h>
#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <filesystem>
#include <iostream>
#include <numeric>
#include <optional>
#include <string>
#include <vector>

#include "costmodel/command/tool.h"
#include "costmodel/errors.h"
#include "costmodel/format/files/files.h"
#include "costmodel/format/files/outputs.h"
#include "costmodel/index.h"
#include "costmodel/text/progress.h"
#include "executor/checkpoint/checkpoint.h"
#include "executor/device/device.h"
#include "executor/intake/layer_sources.h"
#include "executor/run/evaluation.h"
#include "executor/stage/stage_program.h"
#include "executor/tool_options.h"

namespace {

using stagecraft::checkpoint::FoundCheckpoint;
using stagecraft::model::Model;

/// Samples of a microbatch for a file of weights, which names none, if the model allows them.
constexpr std::int64_t kMicrobatch = 32;

struct Options {
  std::string weights;
  std::string model;
  std::vector<std::string> set;
  std::string data;
  std::optional<std::int64_t> microbatch;
  std::optional<std::int64_t> samples;
  int threads = 1;
  std::string device = "cpu";
  std::uint64_t seed = 1;
  bool no_ema = false;
  bool json = false;
  std::string output;
  bool force = false;
};

/// The model of the checkpoint, or the one that the options name.
Model model_of(const Options& o, const std::optional<FoundCheckpoint>& found) {
  std::map<std::string, std::string> settings = found ? found->manifest.options : std::map<std::string, std::string>();
  for (const auto& [key, value] : stagecraft::parse_settings(o.set)) settings[key] = value;
  constexpr auto kMode = stagecraft::model::ModelMode::Evaluation;
  if (!o.model.empty()) return stagecraft::build_model_at("--model", o.model, settings, kMode);
  return stagecraft::intake::build_model(found->manifest.model, settings, kMode);
}

/// Sets parameters and buffers.
void load(const Options& o, const std::optional<FoundCheckpoint>& found, const Model& model,
          stagecraft::stage::StageProgram& program) {
  const auto tied = stagecraft::intake::tied_names(model.name);
  stagecraft::files::TensorFiles files = found ? stagecraft::files::TensorFiles(found->path, found->manifest)
                                               : stagecraft::checkpoint::open_weights(o.weights, model, tied);
  if (found) {
    stagecraft::checkpoint::check_names(files, model, stagecraft::checkpoint::saved_optimizer(found->manifest));
    if (!o.no_ema && stagecraft::checkpoint::use_averages(files)) std::cerr << "evaluating the moving averages\n";
  } else {
    stagecraft::checkpoint::check_weight_names(files, model, tied);
  }
  stagecraft::checkpoint::load_weights(files, program);
}

/// Samples per microbatch if --microbatch does not say: the usual number that the model allows, or a smaller one that
/// leaves no sample over.
std::int64_t default_microbatch(const Options& o, const std::optional<FoundCheckpoint>& found, const Model& model,
                                const stagecraft::data::DataSource& data) {
  const std::int64_t usual =
      std::clamp(found ? found->manifest.microbatch_samples : kMicrobatch, model.least_samples, model.most_samples);
  const std::optional<std::int64_t> samples = o.samples ? o.samples : data.samples();
  return samples ? stagecraft::run::even_microbatch(*samples, usual, model.least_samples) : usual;
}

int run(const Options& o) {
  stagecraft::format::check_outputs({o.weights, o.model}, {{o.output, "stagecraft.evaluation"}}, o.force);
  std::error_code error;
  std::optional<FoundCheckpoint> found;
  const bool has_checkpoints =
      std::filesystem::is_directory(o.weights, error) && !stagecraft::files::is_weights_folder(o.weights);
  if (o.model.empty() || has_checkpoints) {
    if (!has_checkpoints && std::filesystem::exists(o.weights, error))
      throw CLI::ValidationError("--model", "is needed to evaluate a weights file");
    found = stagecraft::checkpoint::checkpoint_at(o.weights, [](const std::string& text) { std::cerr << text + "\n"; });
  }
  stagecraft::device::prepare_device(o.device);
  const Model model = model_of(o, found);
  const auto data = stagecraft::data::make_data_source(o.data, model, o.seed, stagecraft::data::DataOrder::Evaluation);
  const std::int64_t microbatch = o.microbatch ? *o.microbatch : default_microbatch(o, found, model, *data);
  if (microbatch < model.least_samples || microbatch > model.most_samples) {
    throw stagecraft::InputError(stagecraft::ErrorKind::WrongMicrobatch,
                                 fmt::format("--microbatch: {} samples, model {} takes {} to {}", microbatch,
                                             model.name, model.least_samples, model.most_samples));
  }
  const stagecraft::run::EvaluationPieces pieces = stagecraft::run::evaluation_pieces(*data, microbatch, o.samples);

  at::set_num_threads(o.threads);
  const c10::Device device = stagecraft::device::open_device(o.device, false);
  std::vector<int> layers(model.layers.size());
  std::iota(layers.begin(), layers.end(), 0);
  stagecraft::stage::StageProgram program(model, layers, {}, {}, o.seed, {.device = device});
  load(o, found, model, program);

  const auto now = [] {
    return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
  };
  stagecraft::format::ModelEvaluation evaluation;
  {
    stagecraft::ProgressLine line;
    evaluation = stagecraft::run::evaluate(program, model, *data, pieces, now, [&](std::int64_t done) {
      line.show(fmt::format("{} of {} microbatches", done, pieces.microbatches));
    });
  }
  stagecraft::format::EvaluationSubject subject{model.name, o.data, found ? found->path : o.weights, std::nullopt};
  if (found) subject.step = found->manifest.step;
  const std::string document = stagecraft::format::evaluation_json(evaluation, subject);
  if (!o.output.empty()) stagecraft::format::write_text(o.output, document);
  if (o.json) {
    std::cout << document;
  } else if (o.output != "-") {
    std::cout << stagecraft::run::evaluation_text(evaluation) + "\n";
  }
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  Options o;
  return stagecraft::run_computing_tool(
      {"evaluate",
       "Evaluates trained weights on data, in evaluation mode and in one process: loss, accuracy, perplexity.",
       "stagecraft evaluate saved --data fashion-mnist-test\n"
       "  stagecraft evaluate saved/step-1000 --data tensors-in-order:test.safetensors --json\n"
       "  stagecraft evaluate weights.safetensors --model model.pt2 --data tensors-in-order:test.safetensors\n\n" +
           stagecraft::models_text()},
      argc, argv,
      [&](CLI::App& app) {
        app.add_option("WEIGHTS", o.weights,
                       "checkpoint folder of stagecraft run, one of its step-N folders, or, with --model, a file or "
                       "folder of weights")
            ->required();
        app.add_option("--data", o.data, "data source; each sample is read once, in order")
            ->required()
            ->check(stagecraft::data_name());
        app.add_option("--model", o.model, "model (default: the one that the checkpoint names)");
        app.add_option("--set", o.set, "model option key=value; overrides the checkpoint's")
            ->type_name("NAME=VALUE")
            ->allow_extra_args(false);
        stagecraft::add_import_options(app, o.set);
        app.add_option(
               "--microbatch", o.microbatch,
               "samples per microbatch (default: as in the checkpoint's training, or 32 for a weights file; if it does "
               "not divide the samples, the largest divisor down to a quarter of it)")
            ->transform(stagecraft::integer<std::int64_t>(1));
        app.add_option("--samples", o.samples,
                       "evaluate this many samples from the beginning; required for endless data")
            ->transform(stagecraft::integer<std::int64_t>(1));
        app.add_option("--threads", o.threads, "threads")
            ->capture_default_str()
            ->transform(stagecraft::integer(1, stagecraft::kMostAtOnce));
        app.add_option("--device", o.device, "cpu, cuda or cuda:N")
            ->capture_default_str()
            ->check(stagecraft::device_name());
        app.add_option("--seed", o.seed, "random seed of synthetic data")
            ->capture_default_str()
            ->transform(stagecraft::integer<decltype(o.seed)>(0));
        app.add_flag("--no-ema", o.no_ema,
                     "evaluate the trained parameters although the checkpoint has moving averages");
        app.add_flag("--json", o.json, "print the document stagecraft.evaluation");
        app.add_option("-o,--output", o.output, "output file for that document; - is standard output")
            ->type_name("FILE");
        stagecraft::add_force_option(app, o.force);
      },
      [&] { return run(o); });
}
