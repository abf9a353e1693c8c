#pragma once

#include <CLI/CLI.hpp>
#include <functional>
#include <map>
#include <set>
#include <string>
#include <vector>

#include "costmodel/command/tool.h"
#include "executor/model/model.h"
#include "executor/stage/optimizer.h"

// Only for the tools' main functions: options that profile and run share.

namespace stagecraft {

/// `key=value` words as a map. A word without a key or an equals sign is a usage error.
[[nodiscard]] std::map<std::string, std::string> parse_settings(const std::vector<std::string>& words);

/// Checks a device name for open_device, whether or not the device exists. For CLI::Option::check.
[[nodiscard]] CLI::Validator device_name();

/// Checks the name of a data source, with or without an argument after a colon. For CLI::Option::check.
[[nodiscard]] CLI::Validator data_name();

/// build_model for the command line's `place`; an unknown built-in model or model option is a usage error.
[[nodiscard]] model::Model build_model_at(const std::string& place, const std::string& name,
                                          const std::map<std::string, std::string>& set,
                                          model::ModelMode mode = model::ModelMode::Training);

/// The files that a model and a data source are read from, if any; "": none.
[[nodiscard]] std::vector<std::string> files_of(const std::string& model, const std::string& data);

/// The command line that starts this program again, however the shell found it.
[[nodiscard]] std::vector<std::string> own_command(int argc, char** argv);

/// The models with their options, and the data sources, for --help.
[[nodiscard]] std::string models_text();

void add_input_range_option(CLI::App& app, std::vector<std::string>& set);

/// Options of models that come from a file, as words of --set; a group of --help.
void add_import_options(CLI::App& app, std::vector<std::string>& set);

/// What the ranks of a run compare of their command lines, so that none computes something else: the value of every
/// option, given or default. An option that differs from this is marked where it is declared.
class AgreedOptions {
 public:
  /// The files that an option's value names.
  using FilesOf = std::function<std::vector<std::string>(const std::string& value)>;

  /// Ranks may give `option` different values, because it does not change what they compute. Returns it.
  CLI::Option* per_rank(CLI::Option* option);
  /// Ranks compare the contents of the files that `option` names too: those that `files` returns, or else its value.
  /// Returns it.
  CLI::Option* names_files(CLI::Option* option, FilesOf files = nullptr);

  /// "--NAME VALUE" for each option of `app` that is compared, by its long name, or by its name for a positional
  /// argument; then "--NAME file FILE: FINGERPRINT" for each file, see files::fingerprint. Both in the order of names.
  [[nodiscard]] std::vector<std::string> lines(const CLI::App& app) const;

 private:
  std::set<const CLI::Option*> per_rank_;
  std::map<const CLI::Option*, FilesOf> files_;
};

/// The longest and the shortest time limit, in seconds.
inline constexpr double kLongest = 1e6;
inline constexpr double kShortest = 0.001;

/// Largest number of threads of a rank, and of ranks on a machine; a larger number is a mistake.
inline constexpr int kMostAtOnce = 1024;

/// The help's group of the optimizer's options.
inline constexpr const char* kOptimizerGroup = "Optimizer";

void add_optimizer_options(CLI::App& app, stage::OptimizerOptions& options);

/// Further options of a run: learning-rate schedule and clipping.
void add_training_options(CLI::App& app, stage::OptimizerOptions& options);

/// run_tool for a program that computes. A PeerError of `run` ends it with the exit status of its cause.
[[nodiscard]] int run_computing_tool(ToolText text, int argc, char** argv,
                                     const std::function<void(CLI::App&)>& configure, const std::function<int()>& run);

}  // namespace stagecraft
