#pragma once

#include <c10/util/Exception.h>

#include <CLI/CLI.hpp>
#include <filesystem>
#include <map>
#include <stdexcept>
#include <string>
#include <vector>

#include "costmodel/tool.h"
#include "executor/data_source.h"
#include "executor/layer_source.h"
#include "executor/optimizer.h"
#include "executor/program.h"

// For the tools' main functions only: options that profile and run share.

namespace stagecraft {

/// `key=value` words as a map. Throws std::invalid_argument naming a word without a key or an equals sign.
inline std::map<std::string, std::string> parse_settings(const std::vector<std::string>& words) {
  std::map<std::string, std::string> out;
  for (const std::string& word : words) {
    const std::size_t equals = word.find('=');
    if (equals == 0 || equals == std::string::npos) {
      throw std::invalid_argument("--set \"" + word + "\": wanted key=value, as in --set layers=4");
    }
    out[word.substr(0, equals)] = word.substr(equals + 1);
  }
  return out;
}

/// The command line that starts this very program again, however the shell found it.
inline std::vector<std::string> own_command(int argc, char** argv) {
  std::vector<std::string> out(argv, argv + argc);
  out.front() = std::filesystem::read_symlink("/proc/self/exe").string();
  return out;
}

/// The models with their options, and the data sources, for --help.
inline std::string models_text() {
  std::string out = "Models and what --set changes:\n";
  for (const LayerSource& source : layer_sources()) {
    out += "  " + source.name + ": " + source.help + "\n   ";
    for (const ModelOption& option : source.options) out += " " + option.name + "=" + std::to_string(option.value);
    out += "\n";
  }
  out += "Data sources:\n";
  for (const DataSourceKind& kind : data_sources()) {
    out += "  " + kind.name + (kind.argument.empty() ? "" : "[:" + kind.argument + "]") + ": " + kind.help + "\n";
  }
  return out;
}

/// Options of models that come from a file, as words of --set.
inline void add_import_options(CLI::App& app, std::vector<std::string>& set) {
  const auto as_setting = [&app, &set](const std::string& option, const std::string& prefix, const std::string& help) {
    app.add_option_function<std::vector<std::string>>(
           option,
           [&set, prefix](const std::vector<std::string>& words) {
             for (const std::string& word : words) set.push_back(prefix + word);
           },
           help)
        ->allow_extra_args(false);
  };
  as_setting(
      "--layers", "layers=",
      "of a model file: auto (repeated blocks and their neighbours, the default), leaf (innermost modules), depth=N "
      "(modules so deep) or op (each operator)");
  as_setting("--loss", "loss=", "of a model file that gives no loss, see below");
  as_setting("--loss-output",
             "loss_output=", "of a model file: the number of its output that --loss takes, or that is the loss");
  as_setting("--input", "input.",
             "of a TorchScript file: NAME=TYPE[SHAPE], one sample's shape, as image=float32[3,224,224]; :batch_axis=N "
             "behind it "
             "if that is not 0; may be repeated");
  as_setting("--input-range", "range.",
             "of a model file: NAME=FROM..TO, the whole numbers FROM to TO - 1 of an input; may be repeated");
}

inline void add_optimizer_options(CLI::App& app, OptimizerOptions& options) {
  app.add_option("--optimizer", options.name, "sgd, adam or adamw")->capture_default_str();
  app.add_option("--learning-rate,--lr", options.learning_rate, "step of the optimizer")->capture_default_str();
  app.add_option("--momentum", options.momentum, "of sgd")->capture_default_str();
  app.add_option("--weight-decay", options.weight_decay, "of the optimizer")->capture_default_str();
}

/// What a run has beside: the course of the learning rate, and clipping.
inline void add_training_options(CLI::App& app, OptimizerOptions& options) {
  app.add_option("--rate-schedule", options.rate.name, "constant, or cosine down to --last-rate at the run's end")
      ->capture_default_str();
  app.add_option("--warmup-steps", options.rate.warmup, "steps over which the learning rate rises from 0")
      ->capture_default_str();
  app.add_option("--last-rate", options.rate.last, "cosine's rate at the end, as a part of --learning-rate")
      ->capture_default_str();
  app.add_option("--clip-norm", options.clip_norm, "largest norm of the whole model's gradient; 0: any")
      ->capture_default_str();
}

/// run_tool for a program that computes.
template <class Configure, class Run>
[[nodiscard]] int run_computing_tool(ToolText text, int argc, char** argv, Configure configure, Run run) {
  prepare_program();
  text.versions = program_versions();
  return run_tool(text, argc, argv, configure, [&run] {
    try {
      return run();
    } catch (const c10::Error& e) { throw std::runtime_error(error_text(e)); }
  });
}

}  // namespace stagecraft
