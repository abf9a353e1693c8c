#include "executor/run_command.h"

#include <fmt/format.h>

#include <set>
#include <stdexcept>
#include <utility>

#include "costmodel/command/tool.h"
#include "costmodel/format/files/outputs.h"
#include "costmodel/format/plan_json.h"
#include "executor/channel/table/channels.h"
#include "executor/data/data_source.h"
#include "executor/files/tensor_files.h"
#include "executor/intake/layer_sources.h"
#include "executor/tool_options.h"

namespace stagecraft {
namespace {

/// So that epochs times samples fit in 64 bits.
constexpr std::int64_t kMostEpochs = 1'000'000;

/// What is trained, on what, and for how long. Returns the options of the data and the steps.
std::pair<CLI::Option*, CLI::Option*> add_work(CLI::App& app, RunCommand& o) {
  o.agreed.per_rank(
      app.add_option("PLAN", o.plan, "plan.json of stagecraft plan")->required());  // its hash is compared
  app.add_option("--model", o.model, "model (default: the one in the plan)");
  app.add_option("--set", o.set, "model option key=value; overrides the plan's")
      ->type_name("NAME=VALUE")
      ->allow_extra_args(false);
  add_input_range_option(app, o.set);
  const auto data = o.agreed.names_files(
      app.add_option("--data", o.data, "data source")->capture_default_str()->check(data_name()), data::data_files);
  const auto steps =
      app.add_option("--steps", o.run.steps,
                     "total number of steps, including those before a resumed checkpoint; a plan that evaluates "
                     "(schedule forward) defaults to one pass over the data")
          ->capture_default_str()
          ->transform(integer<decltype(o.run.steps)>(1));
  app.add_option("--epochs", o.epochs,
                 "train for this many passes over the data instead of a number of steps; needs finite data")
      ->excludes(steps)
      ->transform(integer<decltype(o.epochs)>(1, kMostEpochs));
  return {data, steps};
}

/// What is reported of the steps.
void add_report(CLI::App& app, RunCommand& o) {
  const OptionGroup group(app, "Log and metrics");
  o.agreed.per_rank(
      app.add_option(
             "--log-every", o.report.every,
             "print a line, and write a line to --metrics, every N steps (default: about ten lines in all and at "
             "least one every ten seconds; metrics for every step)")
          ->type_name("N")
          ->transform(integer<decltype(o.report.every)>(1)));
  o.agreed.per_rank(
      app.add_option(
             "--metrics", o.report.metrics,
             "write loss, learning rate, times and gradient norm as JSON lines during the run; --resume appends to "
             "the file")
          ->type_name("FILE"));
  o.agreed.per_rank(
      app.add_option("--tensorboard", o.report.tensorboard,
                     "write the same numbers at the same steps to a TensorBoard event file in this folder")
          ->type_name("FOLDER"));
}

void add_validation(CLI::App& app, RunCommand& o) {
  const OptionGroup group(app, "Validation");
  const auto validate = o.agreed.names_files(
      app.add_option("--validate-data", o.validate_data,
                     "data source on which to validate, in evaluation mode; each sample is read once, in order")
          ->check(data_name()),
      data::data_files);
  app.add_option("--validate-every", o.run.validation.every,
                 "validate every N steps and after the last one (default: only after the last one)")
      ->needs(validate)
      ->type_name("N")
      ->transform(integer<decltype(o.run.validation.every)>(1));
  app.add_option("--validate-samples", o.run.validation.samples,
                 "validate on this many samples from the beginning; required for endless data")
      ->needs(validate)
      ->transform(integer<std::int64_t>(1));
}

/// Where ranks run, and how they talk.
void add_ranks(CLI::App& app, RunCommand& o) {
  const OptionGroup group(app, "Ranks");
  app.add_option(
         "--channel", o.channel,
         fmt::format("{}; default: {}, or between processes the first of the others that fits --device and that all "
                     "ranks have",
                     channel::channels_text(), channel::default_channel("cpu", false).name))
      ->check(one_of("channel", channel::channel_names()));
  app.add_option("--device", o.device,
                 "cpu, cuda (each rank takes the GPU with its local rank's number) or cuda:N (all ranks use GPU "
                 "N)")
      ->capture_default_str()
      ->check(device_name());
  app.add_flag("--share-gpu", o.share_gpu,
               "let ranks share a GPU, for testing; transfers between them go through the host");
  app.add_flag("--deterministic", o.deterministic,
               "add replicas' gradients in rank order over nccl too, at the cost of memory and time; the other "
               "channels always do");
  app.add_flag("--allow-tf32", o.allow_tf32,
               "let GPUs round the inputs of float32 matrix products, convolutions and recurrent layers to TF32; "
               "default: as the plan says");
  const auto here = app.add_flag("--spawn", o.spawn, "start one process per rank on this machine");
  app.add_option("--hosts", o.hosts,
                 "start one process per rank on the hosts in this file, one NAME [slots=N] per line, filled in order; "
                 "--dry-run prints them with the ranks. "
                 "The program, the working folder and all files must have the same paths on every host. Ranks meet at "
                 "the first host, or at MASTER_ADDR and MASTER_PORT")
      ->type_name("FILE")
      ->excludes(here);
  app.add_option("--remote-shell", o.remote_shell,
                 "with --hosts: command that starts a rank; takes a host and a command line, like ssh")
      ->capture_default_str();
  o.agreed.per_rank(
      app.add_option("--logs", o.logs, "folder for each rank's log, rank-N.log; rank 0 also writes to the terminal")
          ->type_name("FOLDER"));
  app.add_option("--threads", o.run.threads, "threads per rank")
      ->capture_default_str()
      ->transform(integer(1, kMostAtOnce));
  o.agreed.per_rank(app.add_option("--timeout", o.timeout_s, "end the run if a rank is silent for this many seconds")
                        ->capture_default_str()
                        ->transform(number_from(kShortest, kLongest)));
  app.add_flag("--dry-run", o.dry_run, "print which rank does what, then exit");
}

/// What a run compares, and what it does about values that are not finite.
void add_checks(CLI::App& app, RunCommand& o) {
  const OptionGroup group(app, "Checks");
  const auto check =
      app.add_flag("--check", o.run.check,
                   "compare losses and all gradients of every step with a single process; steps take longer");
  o.agreed.names_files(
      app.add_option("--expect", o.run.expected,
                     "compare losses, gradients, and final parameters and buffers with a record of the same "
                     "training in Python, written by stagecraft export-model --record")
          ->excludes(check));
  app.add_option_function<std::string>(
         "--on-nonfinite",
         [&o](const std::string& text) {
           o.run.on_nonfinite = usage("--on-nonfinite", [&] { return stage::parse_on_nonfinite(text); });
         },
         "what to do if a loss or gradient is infinite or NaN: stop the run before the update (default), warn "
         "and continue, or skip the step on all ranks")
      ->type_name("WHAT");
}

/// Returns the options of the loss scale.
std::pair<CLI::Option*, CLI::Option*> add_loss_scale(CLI::App& app, RunCommand& o) {
  const OptionGroup group(app, kOptimizerGroup);
  const auto scale = app.add_option_function<std::string>(
      "--loss-scale",
      [&o](const std::string& text) {
        o.run.loss_scale.fixed = usage("--loss-scale", [&] { return stage::parse_loss_scale(text); });
      },
      "loss scale for float16 plans: a number, or dynamic (default): starts at 65536, halves after a step that "
      "overflows (which is skipped), doubles after --loss-scale-growth-interval steps without an overflow");
  const auto interval = app.add_option("--loss-scale-growth-interval", o.run.loss_scale.growth_interval,
                                       "steps without an overflow "
                                       "before a dynamic loss scale "
                                       "doubles")
                            ->capture_default_str()
                            ->type_name("STEPS")
                            ->transform(integer<decltype(o.run.loss_scale.growth_interval)>(1));
  return {scale, interval};
}

void add_checkpoints(CLI::App& app, RunCommand& o) {
  const OptionGroup group(app, "Checkpoints and weights");
  const auto folder =
      app.add_option("--checkpoint", o.run.checkpoint.folder,
                     "checkpoint folder, shared by all ranks. SIGINT and SIGTERM then end the run after the "
                     "current step, with a checkpoint and exit status 75")
          ->type_name("FOLDER");
  app.add_option("--keep", o.run.checkpoint.keep,
                 "number of newest checkpoints to keep; a checkpoint with infinities or NaNs replaces none")
      ->needs(folder)
      ->capture_default_str()
      ->transform(integer<decltype(o.run.checkpoint.keep)>(1));
  app.add_option("--checkpoint-every", o.run.checkpoint.every,
                 "steps between checkpoints; the last step always writes one")
      ->needs(folder)
      ->capture_default_str()
      ->transform(integer<decltype(o.run.checkpoint.every)>(1));
  app.add_flag("--resume", o.run.checkpoint.resume,
               "resume from the newest complete checkpoint, if any; the plan may differ")
      ->needs(folder);
  const auto restart =
      app.add_option("--restart", o.restarts,
                     "with --spawn or --hosts: if a rank fails, restart all ranks from the newest checkpoint, at "
                     "most this many times")
          ->needs(folder)
          ->transform(integer(0));
  app.add_option(
         "--replan", o.replan,
         "with --restart: if a rank is killed twice without a new checkpoint in between, or its host is not "
         "reached twice, leave its device or host out and plan for the rest, from the graph and the topology of "
         "the plan; the steps' samples stay the same")
      ->needs(restart)
      ->type_name("GRAPH TOPOLOGY")
      ->expected(2);
  o.agreed.names_files(
      app.add_option(
             "--weights", o.run.checkpoint.weights,
             "initial parameters by name: a safetensors file, a state dict from torch.save (.pt, .pth), or an index "
             "(.index.json) or folder of transformers; a resumed checkpoint takes precedence")
          ->type_name("FILE"),
      files::tensor_file_paths);
}

}  // namespace

void add_run_options(CLI::App& app, RunCommand& o) {
  o.agreed_lines = [&app, &o] { return o.agreed.lines(app); };
  const auto [data, steps] = add_work(app, o);
  add_report(app, o);
  add_validation(app, o);
  add_ranks(app, o);
  add_checks(app, o);
  app.add_option("--seed", o.run.seed, "random seed of weights, data and dropout")
      ->capture_default_str()
      ->transform(integer<decltype(o.run.seed)>(0));
  add_optimizer_options(app, o.run.optimizer);
  const auto [scale, interval] = add_loss_scale(app, o);
  add_training_options(app, o.run.optimizer);
  app.callback([&o, scale = scale, interval = interval, data = data, steps = steps] {
    o.scales_loss = scale->count() + interval->count() > 0;
    o.data_given = data->count() > 0;
    o.steps_given = steps->count() > 0;
  });
  add_checkpoints(app, o);
  o.agreed.per_rank(
      app.add_option("-o,--output", o.output, "output file for the measured timeline; - is standard output")
          ->type_name("FILE"));
  o.agreed.per_rank(
      app.add_option("--trace", o.trace, "write a Chrome trace of the run, for ui.perfetto.dev")->type_name("FILE"));
  add_force_option(app, o.force);
  o.agreed.per_rank(app.get_option("--force"));
}

run::JobRequest job_request(const RunCommand& o) {
  run::JobRequest out{.plan = o.plan,
                      .model = o.model,
                      .settings = parse_settings(o.set),
                      .data = o.data,
                      .validation = o.validate_data,
                      .seed = o.run.seed};
  if (!o.model.empty() || !o.set.empty()) {
    out.build = [place = o.model.empty() ? "--set" : "--model"](
                    const std::string& name, const intake::ModelSettings& settings, model::ModelMode mode) {
      return build_model_at(place, name, settings, mode);
    };
  }
  return out;
}

void check_outputs(const RunCommand& o) {
  std::vector<std::string> inputs = files_of(o.model, o.data);
  for (const std::string& file : files_of("", o.validate_data)) inputs.push_back(file);
  for (const std::string* file : {&o.plan, &o.hosts, &o.run.expected, &o.run.checkpoint.weights})
    inputs.push_back(*file);
  format::check_outputs(
      inputs, {{o.output, "stagecraft.timeline"}, {o.trace, "Chrome trace"}, {o.report.metrics, format::kMetricsKind}},
      o.force);
  for (const std::string* const folder : {&o.logs, &o.report.tensorboard}) {
    if (!folder->empty()) format::check_can_write_in(*folder);
  }
}

void fit(RunCommand& o, const run::RunJob& job) {
  usage("--validate-data", [&] { check_validation(job, o.run.validation.samples); });
  if (o.epochs > 0) o.run.steps = usage("--epochs", [&] { return steps_of_epochs(job, o.epochs); });
  o.report.epoch_samples = job.trains() ? job.data->samples() : std::nullopt;
  o.report.rate = o.run.optimizer.rate.name != "constant" || o.run.optimizer.rate.warmup > 0;
  o.report.append = o.run.checkpoint.resume;
  if (job.pass && (!o.steps_given || o.run.steps > job.pass->steps)) o.run.steps = job.pass->steps;
  if (job.validation) {
    o.run.validation.data = job.validation.get();
    o.run.validation.model = &*job.evaluated;
  }
  usage("--validate-every", [&] { check_validation_steps(job, o.run.validation.every, o.run.steps); });
  o.run.optimizer.rate.steps = o.run.steps;
  usage("--lr-schedule", [&] {
    stage::validate(o.run.optimizer.rate);
    if (o.run.optimizer.rate.name == "plateau" && !job.validation)
      throw std::invalid_argument("plateau follows the validation loss; give --validate-data and --validate-every");
    if (o.run.optimizer.rate.name == "plateau" && job.plan.asynchronous())
      throw std::invalid_argument(
          "plateau needs a synchronous schedule: an asynchronous one validates only at the end");
  });
  usage("--optimizer", [&] { stage::validate(o.run.optimizer); });
  const Plan& plan = job.plan.plan();
  if (!run::loss_scaler_of(job.plan, o.run.loss_scale) && o.scales_loss) {
    throw std::invalid_argument(fmt::format("{}: --loss-scale needs a plan in float16, this one is in {}", o.plan,
                                            plan.dtype.empty() ? "float32" : plan.dtype));
  }
  if (o.allow_tf32 && o.device == "cpu") throw CLI::ValidationError("--allow-tf32", "needs GPUs: use --device cuda");
  if (o.allow_tf32 && plan.allow_tf32 == false) {
    throw std::invalid_argument(
        fmt::format("{}: --allow-tf32 needs a plan that allows TF32, this one was profiled without it", o.plan));
  }
  o.allow_tf32 = plan.allow_tf32.value_or(o.allow_tf32);
  run::verify_lists(job.plan, o.run.steps);
}

bool saves_as_it_goes(const RunCommand& o) { return !o.output.empty() && o.output != "-"; }

std::string device_kind(const RunCommand& o) { return o.device.starts_with("cuda") ? "cuda" : "cpu"; }

std::vector<std::string> agreed_lines(const RunCommand& o, const BoundPlan& plan) {
  std::vector<std::string> lines{fmt::format("plan {:016x}", format::plan_hash(plan)),
                                 fmt::format("channel {}, measurement {}", o.channel.empty() ? "by default" : o.channel,
                                             saves_as_it_goes(o) ? "saved" : "not saved")};
  const std::string& model = o.model.empty() ? plan.plan().model : o.model;
  if (intake::is_model_file(model)) lines.push_back(fmt::format("model {:016x}", intake::model_digest(model)));
  for (std::string& line : o.agreed_lines()) lines.push_back(std::move(line));
  return lines;
}

}  // namespace stagecraft
