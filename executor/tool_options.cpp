#include "executor/tool_options.h"

#include <c10/util/Exception.h>

#include <algorithm>
#include <filesystem>
#include <iostream>
#include <utility>

#include "costmodel/command/tool.h"
#include "costmodel/errors.h"
#include "costmodel/text/number.h"
#include "executor/channel/table/channels.h"
#include "executor/data/data_source.h"
#include "executor/device/device.h"
#include "executor/device/machine/program.h"
#include "executor/files/columns.h"
#include "executor/files/fingerprint.h"
#include "executor/intake/builtin/builtin_models.h"
#include "executor/intake/layer_sources.h"
#include "executor/launch/rendezvous.h"

namespace stagecraft {

namespace {

/// An option whose values are --set words without `prefix`.
void add_setting_option(CLI::App& app, std::vector<std::string>& set, const std::string& option,
                        const std::string& prefix, const std::string& help) {
  app.add_option_function<std::vector<std::string>>(
         option,
         [&set, prefix](const std::vector<std::string>& words) {
           for (const std::string& word : words) set.push_back(prefix + word);
         },
         help)
      ->allow_extra_args(false);
}

/// What --version says about this program's build and the libraries that it finds: ", LibTorch 2.11.0, ...".
std::string tool_versions() {
  const bool images = data::why_no_images().empty();
  const bool columns = files::why_no_columns().empty();
  return device::program_versions() + ", " + channel::channel_versions() +
         (images ? ", libjpeg and libpng" : ", without images") +
         (columns ? ", Parquet and Arrow" : ", without Parquet");
}

/// `text` after `before` for one setting: the last one. But `layers` may be given twice, as the number of a built-in
/// model's option and as the way to cut it: both, as build_builtin_model takes them.
std::string combined(const std::string& key, const std::string& before, const std::string& text) {
  const auto is_number = [](const std::string& word) { return number_in<std::int64_t>(word).has_value(); };
  if (key != "layers" || before.empty() || is_number(before) == is_number(text)) return text;
  return is_number(before) ? before + "," + text : text + "," + before;
}

}  // namespace

std::map<std::string, std::string> parse_settings(const std::vector<std::string>& words) {
  std::map<std::string, std::string> out;
  for (const std::string& word : words) {
    const std::size_t equals = word.find('=');
    if (equals == 0 || equals == std::string::npos) {
      throw CLI::ValidationError("--set \"" + word + "\"", "expected key=value, such as --set layers=4");
    }
    std::string& value = out[word.substr(0, equals)];
    value = combined(word.substr(0, equals), value, word.substr(equals + 1));
  }
  return out;
}

CLI::Validator device_name() {
  const auto check = [](const std::string& name) -> std::string {
    if (name == "cpu" || name == "cuda") return "";
    const std::string prefix = "cuda:";
    if (!name.starts_with(prefix)) return unknown_name("device", name, device::device_names());
    return number_in<int>(name.substr(prefix.size())).value_or(-1) >= 0
               ? ""
               : "\"" + name + "\" is not cuda or cuda:N with N from 0";
  };
  return {check, ""};
}

CLI::Validator data_name() { return {data::unknown_source_text, ""}; }

model::Model build_model_at(const std::string& place, const std::string& name,
                            const std::map<std::string, std::string>& set, model::ModelMode mode) {
  if (intake::is_model_file(name)) return intake::build_model(name, set, mode);
  return usage(place, [&] { return intake::build_model(name, set, mode); });
}

std::vector<std::string> files_of(const std::string& model, const std::string& data) {
  std::vector<std::string> out;
  if (intake::is_model_file(model)) out.push_back(model);
  if (data.empty()) return out;
  for (const std::string& file : data::data_files(data)) out.push_back(file);
  return out;
}

std::vector<std::string> own_command(int argc, char** argv) {
  std::vector<std::string> out(argv, argv + argc);
  out.front() = std::filesystem::read_symlink("/proc/self/exe").string();
  return out;
}

std::string models_text() {
  std::string out = "Models and their options (--set):\n";
  for (const intake::BuiltinModel& model : intake::builtin_models()) {
    out += "  " + model.name + ": " + model.help + "\n   ";
    for (const intake::ModelOption& option : model.options)
      out += " " + option.name + "=" + std::to_string(option.value);
    out += "\n";
  }
  out += "Data sources:\n";
  for (const data::DataSourceKind& kind : data::data_sources()) {
    out += "  " + kind.name + (kind.argument.empty() ? "" : "[:" + kind.argument + "]") + ": " + kind.help + "\n";
  }
  return out;
}

void add_input_range_option(CLI::App& app, std::vector<std::string>& set) {
  add_setting_option(app, set, "--input-range", "range.",
                     "model files: NAME=LOW..HIGH, the range of an integer input (HIGH excluded); overrides the file. "
                     "At most the rows of an embedding or the classes of a loss that reads the input; repeatable");
}

void add_import_options(CLI::App& app, std::vector<std::string>& set) {
  const OptionGroup group(app, "Models");
  const auto as_setting = [&app, &set](const std::string& option, const std::string& prefix, const std::string& help) {
    add_setting_option(app, set, option, prefix, help);
  };
  as_setting("--layers", "layers=",
             "how to cut into layers: auto (repeated blocks and the modules around them; default), leaf "
             "(innermost modules), depth=N (modules at depth N) or op (operators)");
  as_setting(
      "--loss", "loss=",
      "model files: loss of a model without one: cross_entropy, mse and others; an unknown name prints the list");
  as_setting("--loss-output", "loss_output=", "index of the output that is the loss, or that --loss reads");
  as_setting("--input", "input.",
             "TorchScript files: NAME=TYPE[SHAPE] of one sample, such as image=float32[3,224,224]; append "
             ":batch_axis=N if the batch axis is not 0; repeatable");
  add_input_range_option(app, set);
}

CLI::Option* AgreedOptions::per_rank(CLI::Option* option) {
  per_rank_.insert(option);
  return option;
}

CLI::Option* AgreedOptions::names_files(CLI::Option* option, FilesOf files) {
  files_[option] = std::move(files);
  return option;
}

std::vector<std::string> AgreedOptions::lines(const CLI::App& app) const {
  std::map<std::string, std::string> values;
  std::map<std::string, std::vector<std::string>> files;
  for (const CLI::Option* option : app.get_options()) {
    if (per_rank_.contains(option)) continue;
    const std::string name = option->get_lnames().empty() ? option->get_name() : option->get_lnames().front();
    std::string& value = values[name];
    if (option->count() == 0) value = option->get_default_str();
    for (const std::string& word : option->results()) value += (value.empty() ? "" : " ") + word;
    const auto found = files_.find(option);
    if (found == files_.end() || value.empty()) continue;
    files[name] = found->second ? found->second(value) : std::vector{value};
  }
  std::vector<std::string> out;
  for (const auto& [name, value] : values) out.push_back("--" + name + " " + value);
  for (const auto& [name, paths] : files) {
    for (const std::string& path : paths)
      out.push_back("--" + name + " file " + path + ": " + files::fingerprint(path));
  }
  return out;
}

void add_optimizer_options(CLI::App& app, stage::OptimizerOptions& options) {
  const OptionGroup group(app, kOptimizerGroup);
  app.add_option("--optimizer", options.name,
                 "sgd, adam, adamw, adamax, nadam, radam, adagrad, adadelta, rmsprop (as in torch.optim) or lion")
      ->capture_default_str()
      ->check(CLI::Validator([](const std::string& name) { return stage::unknown_optimizer_text(name); }, ""));
  app.add_option("--learning-rate,--lr", options.learning_rate, "learning rate")
      ->capture_default_str()
      ->transform(number_from(0, 1e6));
  app.add_option("--momentum", options.momentum, "momentum of sgd and rmsprop")
      ->capture_default_str()
      ->transform(number_from(0, 1));
  app.add_option("--weight-decay", options.weight_decay, "weight decay")
      ->capture_default_str()
      ->transform(number_from(0, 1e6));
  app.add_option_function<std::vector<double>>(
         "--betas",
         [&options](const std::vector<double>& betas) {
           options.beta1 = betas.at(0);
           options.beta2 = betas.at(1);
         },
         "beta1 and beta2 of adam and its variants, and of lion (default: 0.9,0.999; lion 0.9,0.99)")
      ->expected(2)
      ->delimiter(',')
      ->type_name("BETA1,BETA2");
  app.add_option("--eps", options.epsilon,
                 "term added to the denominator (default: 1e-8; adagrad 1e-10, adadelta 1e-6)")
      ->transform(number_from(0, 1e6));
  app.add_option("--dampening", options.dampening, "dampening of sgd's momentum")
      ->capture_default_str()
      ->transform(number_from(0, 1));
  app.add_flag("--nesterov", options.nesterov, "Nesterov momentum, for sgd");
  app.add_flag("--amsgrad", options.amsgrad, "adam and adamw: use the AMSGrad variant");
  app.add_option("--alpha", options.alpha, "decay rate of rmsprop's squares")
      ->capture_default_str()
      ->transform(number_from(0, 1));
  app.add_flag("--centered", options.centered, "rmsprop: use the centered variant");
  app.add_option("--rho", options.rho, "decay rate of adadelta")->capture_default_str()->transform(number_from(0, 1));
  app.add_option("--lr-decay", options.learning_rate_decay, "learning rate decay of adagrad")
      ->capture_default_str()
      ->transform(number_from(0, 1e6));
  app.add_option("--initial-accumulator-value", options.initial_accumulator, "initial accumulator value of adagrad")
      ->capture_default_str()
      ->transform(number_from(0, 1e30));
  app.add_option("--momentum-decay", options.momentum_decay, "momentum decay of nadam")
      ->capture_default_str()
      ->transform(number_from(0, 1e6));
  app.add_flag("--decoupled-weight-decay", options.decoupled_weight_decay,
               "nadam and radam: decoupled weight decay, as in AdamW");
  app.add_option("--ema-decay", options.ema_decay,
                 "keep a moving average of each parameter with this decay, for evaluation; 0: none")
      ->capture_default_str()
      ->transform(number_from(0, 1));
}

void add_training_options(CLI::App& app, stage::OptimizerOptions& options) {
  app.add_option_function<std::vector<std::string>>(
         "--group",
         [&options](const std::vector<std::string>& texts) {
           usage("--group", [&] {
             for (const std::string& text : texts) options.groups.push_back(stage::parse_group(text));
           });
         },
         "weight-decay, learning-rate or learning-rate-factor of the parameters in whose name PATTERN, a regular "
         "expression, is found, such as 'bias|norm:weight-decay=0'; the first that matches counts; repeatable")
      ->group(kOptimizerGroup)
      ->type_name("PATTERN:SETTING=VALUE,...")
      ->allow_extra_args(false);
  app.add_option("--clip-norm", options.clip_norm, "clip the gradient of the whole model to this norm; 0: no clipping")
      ->group(kOptimizerGroup)
      ->capture_default_str()
      ->transform(number_from(0, 1e30));
  const OptionGroup group(app, "Learning-rate schedule");
  app.add_option("--lr-schedule,--rate-schedule", options.rate.name,
                 "learning-rate schedule: constant; linear, polynomial or cosine down to --last-rate at the last step; "
                 "step, exponential or one-cycle; plateau follows the validation loss")
      ->capture_default_str()
      ->check(one_of("rate schedule", stage::rate_schedule_names()));
  app.add_option("--warmup-steps", options.rate.warmup, "linear warm-up steps from a learning rate of 0")
      ->capture_default_str()
      ->transform(integer<decltype(options.rate.warmup)>(0));
  app.add_option(
         "--last-rate", options.rate.last,
         "final rate of linear, polynomial and cosine, or least rate of plateau, as a fraction of --learning-rate")
      ->capture_default_str()
      ->transform(number_from(0, 1));
  app.add_option("--lr-power", options.rate.power, "power of polynomial")
      ->capture_default_str()
      ->transform(number_from(0, 1e3));
  app.add_option("--lr-step-size", options.rate.every, "step: number of steps between decays")
      ->type_name("STEPS")
      ->transform(integer<decltype(options.rate.every)>(1));
  app.add_option("--lr-gamma", options.rate.gamma,
                 "step and plateau: factor of each decay; exponential: factor of each step")
      ->capture_default_str()
      ->transform(number_from(0, 1e3));
  app.add_option("--lr-patience", options.rate.patience,
                 "plateau: validations without a better loss before the rate falls")
      ->capture_default_str()
      ->transform(integer<decltype(options.rate.patience)>(0));
  app.add_option("--lr-threshold", options.rate.threshold,
                 "plateau: share of the best loss by which a better one is below it")
      ->capture_default_str()
      ->transform(number_from(0, 1));
  app.add_option("--pct-start", options.rate.rise, "fraction of one-cycle in which the rate rises to --learning-rate")
      ->capture_default_str()
      ->transform(number_from(0, 1));
  app.add_option("--div-factor", options.rate.first_divisor, "one-cycle begins with --learning-rate / this")
      ->capture_default_str()
      ->transform(number_from(1, 1e30));
  app.add_option("--final-div-factor", options.rate.last_divisor, "one-cycle ends with its first rate / this")
      ->capture_default_str()
      ->transform(number_from(1, 1e30));
  app.add_option("--anneal-strategy", options.rate.anneal, "how one-cycle moves between its rates: cos or linear")
      ->capture_default_str()
      ->check(one_of("annealing", {"cos", "linear"}));
}

int run_computing_tool(ToolText text, int argc, char** argv, const std::function<void(CLI::App&)>& configure,
                       const std::function<int()>& run) {
  device::prepare_program();
  // UCX is loaded for its version only if that is asked for: from then on it handles signals.
  const std::vector<std::string> words(argv, argv + argc);
  if (std::ranges::find(words, "--version") != words.end()) text.versions = tool_versions();
  const std::string program = "stagecraft-" + text.verb;
  return run_tool(text, argc, argv, configure, [&] {
    try {
      return run();
    } catch (const c10::Error& e) { device::rethrow_at("", e); } catch (const meeting::PeerError& e) {
      std::cerr << program << ": " << message_of(e) << "\n";
      return launch::exit_status(e);
    }
  });
}

}  // namespace stagecraft
