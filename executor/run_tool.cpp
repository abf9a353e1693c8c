#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <functional>
#include <map>
#include <set>

#include "costmodel/command/tool.h"
#include "costmodel/errors.h"
#include "costmodel/format/files/files.h"
#include "costmodel/format/files/outputs.h"
#include "costmodel/format/json.h"
#include "costmodel/format/plan_hash.h"
#include "costmodel/index.h"
#include "costmodel/interchange/traces/chrome_trace.h"
#include "executor/channel/channels.h"
#include "executor/device/device.h"
#include "executor/device/machine/provenance.h"
#include "executor/intake/layer_sources.h"
#include "executor/launch/exit_status.h"
#include "executor/launch/hosts.h"
#include "executor/launch/launch.h"
#include "executor/launch/rank_group.h"
#include "executor/launch/rank_log.h"
#include "executor/launch/rendezvous.h"
#include "executor/launch/spawn.h"
#include "executor/launch/stop_signals.h"
#include "executor/launch/tether.h"
#include "executor/meeting/launch_info.h"
#include "executor/run/binding/bound_model.h"
#include "executor/run/binding/nccl_calls.h"
#include "executor/run/run.h"
#include "executor/run/run_report.h"
#include "executor/tool_options.h"

namespace {

using stagecraft::Measurement;
using stagecraft::Plan;
using stagecraft::run::CheckpointOptions;
using stagecraft::run::RunOptions;
using stagecraft::run::RunResult;
using std::chrono::milliseconds;

/// Waits in the channel may last this many deadlines before they count as stuck.
constexpr int kPatience = 10;

/// So that epochs times samples fit in 64 bits.
constexpr std::int64_t kMostEpochs = 1'000'000;

struct Options {
  std::string plan;
  std::string model;
  std::vector<std::string> set;
  std::string data = "synthetic";
  std::string validate_data;
  std::string channel;
  std::string device = "cpu";
  bool share_gpu = false;
  bool deterministic = false;
  bool allow_tf32 = false;
  bool spawn = false;
  std::string hosts;
  std::string remote_shell = stagecraft::launch::SpawnOptions{}.remote_shell;
  std::string logs;
  bool dry_run = false;
  int restarts = 0;
  double timeout_s = 60;
  std::string output;
  std::string trace;
  bool force = false;
  RunOptions run;
  bool scales_loss = false;  ///< a loss-scale option was given
  bool steps_given = false;
  std::int64_t epochs = 0;  ///< 0: not given
  stagecraft::run::ReportOptions report;
  std::function<std::map<std::string, std::string>()> given;  ///< every option with its value, by long name
};

/// Whether the output is a file that can be replaced repeatedly; a pipe gets one document, at the end.
bool saves_as_it_goes(const Options& o) { return !o.output.empty() && o.output != "-"; }

/// What must be equal on all ranks before anything is sent: the plan, the model file, and every option except those for
/// where this rank reads the plan and writes its results.
std::vector<std::string> agreed_lines(const stagecraft::BoundPlan& plan, const Options& o) {
  static const std::set<std::string> own{"PLAN",    "output",  "trace",     "force",      "logs",
                                         "timeout", "metrics", "log-every", "tensorboard"};
  const std::string& model = o.model.empty() ? plan.plan().model : o.model;
  std::vector<std::string> lines{fmt::format("plan {:016x}", stagecraft::format::plan_hash(plan)),
                                 fmt::format("channel {}, measurement {}", o.channel.empty() ? "by default" : o.channel,
                                             saves_as_it_goes(o) ? "saved" : "not saved")};
  if (stagecraft::intake::is_model_file(model))
    lines.push_back(fmt::format("model {:016x}", stagecraft::intake::model_digest(model)));
  for (const auto& [name, value] : o.given()) {
    if (!own.contains(name)) lines.push_back(fmt::format("--{} {}", name, value));
  }
  return lines;
}

void write_measurement(const Options& o, Measurement measurement) {
  if (measurement.timeline.ranks > 1) measurement.channel = o.channel;
  measurement.provenance = stagecraft::device::provenance_here("stagecraft-run", o.run.device);
  stagecraft::format::write_text(o.output, stagecraft::format::measurement_json(measurement));
}

/// Call when the device is known. `o` must outlive the run.
void save_as_it_goes(Options& o) {
  if (saves_as_it_goes(o)) o.run.save = [&o](const Measurement& sofar) { write_measurement(o, sofar); };
}

/// Exit status of every rank after the run.
int status(const RunResult& result, const Options& o) {
  return result.steps_done < o.run.steps && !result.evaluation ? stagecraft::launch::kStopped : 0;
}

int finish(const RunResult& result, const Options& o, std::optional<stagecraft::Seconds> predicted,
           const std::optional<stagecraft::run::WholePass>& pass) {
  const auto& m = result.measurement;
  if (m.timeline.steps.empty()) {
    std::cerr << fmt::format("nothing to do: {} of {} steps are already done\n", result.first_step, o.run.steps);
    return 0;
  }
  if (result.evaluation) {
    std::cerr << stagecraft::run::evaluation_text(*result.evaluation, *m.microbatch_samples, pass) + "\n";
  } else {
    std::cerr << stagecraft::run::closing_text(m, predicted) + "\n";
  }
  if (result.nonfinite_steps > 0) {
    std::cerr << fmt::format("{} of {} steps had infinite or NaN values{}\n", result.nonfinite_steps, m.losses.size(),
                             o.run.on_nonfinite == stagecraft::stage::OnNonfinite::Skip ? " and were skipped" : "");
  }
  if (result.loss_scale) {
    std::cerr << fmt::format("final loss scale {:g}; {} of {} steps overflowed and were skipped\n",
                             result.loss_scale->scale, result.skipped_steps, m.losses.size());
  }
  for (const std::string& reason : stagecraft::crowded_reasons(m.conditions, "the run"))
    std::cerr << "not trusted: " + reason + "\n";
  if (!o.output.empty()) write_measurement(o, m);
  if (!o.trace.empty())
    stagecraft::format::write_text(o.trace, stagecraft::interchange::chrome_trace(m.timeline, m.model + ", measured"));
  if (result.check) {
    std::cerr << stagecraft::run::check_text(*result.check) + "\n";
    if (!stagecraft::run::is_close(*result.check)) return 1;
  }
  if (status(result, o) == stagecraft::launch::kStopped) {
    std::cerr << fmt::format("stopped on request after {} of {} steps, saved in {}; use --resume to continue\n",
                             result.steps_done, o.run.steps,
                             stagecraft::checkpoint::checkpoint_path(o.run.checkpoint.folder, result.steps_done));
  }
  return status(result, o);
}

/// The device on which this rank computes.
c10::Device open_rank_device(const Options& o, const stagecraft::meeting::LaunchInfo& launch) {
  if (o.device != "cuda") return stagecraft::device::open_device(o.device, o.allow_tf32);
  if (const auto reason = stagecraft::device::no_gpu_reason())
    throw stagecraft::DeviceError(stagecraft::ErrorKind::NoGpu, *reason);
  return stagecraft::device::open_device(
      fmt::format("cuda:{}", stagecraft::launch::gpu_of_rank(launch, stagecraft::device::gpu_count(), o.share_gpu)),
      o.allow_tf32);
}

/// Everything to run, read and cross-checked.
struct Job {
  explicit Job(const Options& o);
  Job(const Job&) = delete;
  Job& operator=(const Job&) = delete;

  stagecraft::BoundPlan plan;
  stagecraft::model::Model model;
  stagecraft::run::BoundModel bound;
  std::unique_ptr<stagecraft::data::DataSource> data;
  std::optional<stagecraft::run::WholePass> pass;     ///< for a plan that only evaluates, over finite data
  std::optional<stagecraft::model::Model> evaluated;  ///< the model in evaluation mode, if the run validates
  std::unique_ptr<stagecraft::data::DataSource> validation;
};

stagecraft::model::Model load_model(const stagecraft::BoundPlan& bound, const Options& o,
                                    stagecraft::model::ModelMode mode) {
  const Plan& plan = bound.plan();
  auto settings = plan.options;
  for (const auto& [key, value] : stagecraft::parse_settings(o.set)) settings[key] = value;
  const std::string& name = o.model.empty() ? plan.model : o.model;
  if (o.model.empty() && o.set.empty()) return stagecraft::intake::build_model(name, settings, mode);
  return stagecraft::build_model_at(o.model.empty() ? "--set" : "--model", name, settings, mode);
}

stagecraft::model::ModelMode mode_of(const stagecraft::BoundPlan& bound) {
  return bound.schedule().trains ? stagecraft::model::ModelMode::Training : stagecraft::model::ModelMode::Evaluation;
}

/// Reads what a run validates on.
void read_validation(const Options& o, Job& job) {
  if (o.validate_data.empty()) return;
  const std::string& schedule = job.plan.plan().schedule;
  if (!job.plan.schedule().trains)
    throw CLI::ValidationError("--validate-data", "schedule \"" + schedule + "\" trains nothing");
  job.evaluated = load_model(job.plan, o, stagecraft::model::ModelMode::Evaluation);
  job.validation = stagecraft::data::make_data_source(o.validate_data, *job.evaluated, o.run.seed,
                                                      stagecraft::data::DataOrder::Evaluation);
  if (!job.validation->samples() && !o.run.validation.samples) {
    throw CLI::ValidationError("--validate-data",
                               fmt::format("data source \"{}\" has no end; use --validate-samples", o.validate_data));
  }
  stagecraft::usage("--validate-data", [&] {
    (void)stagecraft::run::evaluation_pieces(*job.validation, job.plan.plan().microbatch_samples.value_or(1),
                                             o.run.validation.samples);
  });
}

Job::Job(const Options& o)
    : plan(stagecraft::format::read_plan(o.plan)),
      model(load_model(plan, o, mode_of(plan))),
      bound(stagecraft::run::bind_model(plan, model)) {
  const bool trains = plan.schedule().trains;
  data = stagecraft::data::make_data_source(
      o.data, model, o.run.seed,
      trains ? stagecraft::data::DataOrder::Training : stagecraft::data::DataOrder::Evaluation);
  if (!trains) pass = stagecraft::run::whole_pass(plan.plan(), *data);
  read_validation(o, *this);
}

/// Steps that go through the data `epochs` times, rounded up. Precondition: fewer than 2^63 samples in all.
std::int64_t steps_of_epochs(const Options& o, const Job& job) {
  const Plan& plan = job.plan.plan();
  if (!job.plan.schedule().trains)
    throw CLI::ValidationError("--epochs", "schedule \"" + plan.schedule + "\" goes through the data once");
  const std::optional<std::int64_t> samples = job.data->samples();
  if (!samples) {
    throw CLI::ValidationError("--epochs", fmt::format("data source \"{}\" has no end; use --steps", o.data));
  }
  const std::int64_t step = plan.microbatch_samples.value_or(1) * plan.microbatches;
  return (o.epochs * *samples + step - 1) / step;
}

/// Sets options that follow from the job, and refuses those that do not fit it.
void fit_options(Options& o, const Job& job) {
  if (o.epochs > 0) o.run.steps = steps_of_epochs(o, job);
  o.report.epoch_samples = job.plan.schedule().trains ? job.data->samples() : std::nullopt;
  o.report.rate = o.run.optimizer.rate.name != "constant" || o.run.optimizer.rate.warmup > 0;
  o.report.append = o.run.checkpoint.resume;
  if (job.pass && (!o.steps_given || o.run.steps > job.pass->steps)) o.run.steps = job.pass->steps;
  if (job.validation) {
    o.run.validation.data = job.validation.get();
    o.run.validation.model = &*job.evaluated;
    if (job.plan.asynchronous() && o.run.validation.every > 0 && o.run.validation.every < o.run.steps) {
      throw CLI::ValidationError("--validate-every",
                                 "schedule \"" + job.plan.plan().schedule +
                                     "\" is asynchronous, so its pipeline is empty only after the last step; give "
                                     "--validate-data alone");
    }
  }
  o.run.optimizer.rate.steps = o.run.steps;
  stagecraft::usage("--lr-schedule", [&] { stagecraft::stage::validate(o.run.optimizer.rate); });
  stagecraft::usage("--optimizer", [&] { stagecraft::stage::validate(o.run.optimizer); });
  if (!stagecraft::stage::loss_scaler_of(job.plan, o.run.loss_scale) && o.scales_loss) {
    const std::string& dtype = job.plan.plan().dtype;
    throw std::invalid_argument(fmt::format("{}: --loss-scale needs a plan in float16, this one is in {}", o.plan,
                                            dtype.empty() ? "float32" : dtype));
  }
  if (o.allow_tf32 && o.device == "cpu") throw CLI::ValidationError("--allow-tf32", "needs GPUs: use --device cuda");
  const std::optional<bool> planned = job.plan.plan().allow_tf32;
  if (o.allow_tf32 && planned == false) {
    throw std::invalid_argument(
        fmt::format("{}: --allow-tf32 needs a plan that allows TF32, this one was profiled without it", o.plan));
  }
  o.allow_tf32 = planned.value_or(o.allow_tf32);
  stagecraft::run::verify_lists(job.plan, o.run.steps);
}

/// The kind of device on which ranks compute, as the table of channels has it.
std::string device_kind(const Options& o) { return o.device.starts_with("cuda") ? "cuda" : "cpu"; }

/// The NCCL calls of the ranks, proved to match.
stagecraft::channel::NcclProgram proved_nccl_program(const stagecraft::run::BoundModel& bound, std::int64_t steps) {
  const int covered = stagecraft::to_int(std::min<std::int64_t>(steps, bound.plan.step_window().steps));
  stagecraft::channel::NcclProgram program = stagecraft::run::nccl_program(bound, std::max(covered, 1));
  if (const std::string wrong = stagecraft::channel::find_mismatch(program); !wrong.empty())
    throw std::logic_error("transfers of the plan do not match: " + wrong);
  return program;
}

int run_process(const stagecraft::meeting::LaunchInfo& launch, const Job& job, Options o, milliseconds deadline) {
  const int wanted = stagecraft::to_int(job.plan.ranks().size());
  if (launch.ranks != wanted) {
    throw stagecraft::InputError(
        stagecraft::ErrorKind::WrongRankCount,
        fmt::format("{}: the plan needs {} ranks, {} started {}", o.plan, wanted, launch.launcher, launch.ranks));
  }
  RunResult result;
  const auto body = [&](stagecraft::launch::Rendezvous& rendezvous,
                        std::unique_ptr<stagecraft::channel::Channel>& channel) {
    stagecraft::launch::agree(rendezvous, agreed_lines(job.plan, o));
    if (o.channel.empty()) {
      const auto agreed = stagecraft::launch::agree_on_channel(rendezvous, device_kind(o));
      o.channel = agreed.name;
      if (launch.rank == 0 && !agreed.note.empty()) std::cerr << agreed.note + "\n";
    }
    o.run.device = open_rank_device(o, launch);
    save_as_it_goes(o);
    stagecraft::channel::ChannelSetup setup;
    setup.launch = launch;
    // The heartbeat detects dead and stopped ranks within the deadline; a wait may last as long as a peer computes.
    setup.deadline = kPatience * deadline;
    setup.activity = rendezvous.activity();
    setup.device = o.run.device;
    setup.share_gpu = o.share_gpu;
    setup.deterministic = o.deterministic;
    setup.program = [&] { return proved_nccl_program(job.bound, o.run.steps); };
    channel = stagecraft::channel::channel_by_name(o.channel).make_process(setup);
    std::optional<stagecraft::run::StepReporter> reporter;
    if (launch.rank == 0) reporter.emplace(job.plan.plan(), o.report);
    result = stagecraft::run::run_rank(job.bound, *job.data, o.run, launch.rank, *channel,
                                       stagecraft::launch::common_clock(rendezvous),
                                       [&](const stagecraft::run::Progress& p) { (*reporter)(p); });
  };
  stagecraft::launch::run_as_process(launch, deadline, body);
  return launch.rank == 0 ? finish(result, o, job.plan.plan().iteration, job.pass) : status(result, o);
}

int run_threads(const Job& job, Options& o, milliseconds deadline) {
  o.run.device = stagecraft::device::open_device(o.device, o.allow_tf32);
  save_as_it_goes(o);
  stagecraft::run::StepReporter reporter(job.plan.plan(), o.report);
  return finish(stagecraft::run::run_local(job.bound, *job.data, o.run, kPatience * deadline,
                                           [&](const stagecraft::run::Progress& p) { reporter(p); }),
                o, job.plan.plan().iteration, job.pass);
}

/// The channel's name; empty if processes have yet to agree on one.
std::string choose_channel(const Options& o, bool processes) {
  const std::string device = device_kind(o);
  if (o.channel.empty()) return processes ? "" : stagecraft::channel::default_channel(device, false).name;
  const stagecraft::channel::ChannelKind& kind = stagecraft::channel::channel_by_name(o.channel);
  if (kind.device.empty() || kind.device == device) {
    stagecraft::channel::require(kind);
    return kind.name;
  }
  throw CLI::ValidationError("--channel", fmt::format("{} needs {}: use --device {}, or --channel {}", kind.name,
                                                      kind.device == "cuda" ? "GPUs" : "CPUs", kind.device,
                                                      stagecraft::channel::default_channel(device, true).name));
}

/// Starts one process per rank, here or on the hosts, and waits for them.
int start_ranks(const Options& o, int ranks, const std::vector<std::string>& arguments, milliseconds deadline) {
  stagecraft::launch::SpawnOptions options;
  options.restarts = o.restarts;
  options.again = arguments;
  if (!o.run.checkpoint.resume) options.again.push_back("--resume");
  if (!o.logs.empty()) stagecraft::launch::check_log_folder(o.logs);
  if (!o.hosts.empty()) {
    options.hosts = stagecraft::launch::read_hosts(o.hosts);
    options.remote_shell = o.remote_shell;
  }
  return stagecraft::launch::spawn(ranks, arguments, deadline, options);
}

/// A run is long: check first whether its results can be written.
void check_outputs_of(const Options& o) {
  std::vector<std::string> inputs = stagecraft::files_of(o.model, o.data);
  for (const std::string& each : stagecraft::files_of("", o.validate_data)) inputs.push_back(each);
  for (const std::string* each : {&o.plan, &o.hosts, &o.run.expected, &o.run.checkpoint.weights})
    inputs.push_back(*each);
  stagecraft::format::check_outputs(inputs,
                                    {{o.output, "stagecraft.timeline"},
                                     {o.trace, "Chrome trace"},
                                     {o.report.metrics, stagecraft::format::kMetricsKind}},
                                    o.force);
  for (const std::string* const folder : {&o.logs, &o.report.tensorboard}) {
    if (!folder->empty()) stagecraft::format::check_can_write_in(*folder);
  }
}

/// A channel of threads cannot connect processes.
void check_threads(const Options& o, const std::optional<stagecraft::meeting::LaunchInfo>& launch) {
  const std::string threads = fmt::format("channel {} runs all ranks as threads of one process", o.channel);
  if (o.spawn || !o.hosts.empty()) {
    throw CLI::ValidationError("--channel",
                               fmt::format("{}; remove --{}, or use --channel {}", threads, o.spawn ? "spawn" : "hosts",
                                           stagecraft::channel::default_channel(device_kind(o), true).name));
  }
  if (launch && launch->ranks > 1)
    throw std::invalid_argument(fmt::format("{}, {} started {}", threads, launch->launcher, launch->ranks));
}

/// Checks that would fail on all ranks, before any is started.
void check_state(const Options& o, const Job& job) {
  const CheckpointOptions& checkpoint = o.run.checkpoint;
  if (!checkpoint.folder.empty()) {
    stagecraft::checkpoint::check_checkpoint_folder(checkpoint.folder, checkpoint.resume);
    stagecraft::run::check_can_resume(job.bound, checkpoint, o.run.optimizer, o.run.seed);
  }
  if (!checkpoint.weights.empty())
    stagecraft::checkpoint::check_weight_names(stagecraft::files::TensorFiles({checkpoint.weights}), job.model,
                                               stagecraft::intake::tied_names(job.model.name));
  if (o.spawn && o.device == "cuda") {
    if (const auto reason = stagecraft::device::no_gpu_reason())
      throw stagecraft::DeviceError(stagecraft::ErrorKind::NoGpu, *reason);
    stagecraft::meeting::LaunchInfo last;
    last.ranks = stagecraft::to_int(job.plan.ranks().size());
    last.rank = last.local_rank = last.ranks - 1;
    (void)stagecraft::launch::gpu_of_rank(last, stagecraft::device::gpu_count(), o.share_gpu);
  }
}

int run(Options o, const std::vector<std::string>& arguments, std::optional<stagecraft::launch::RankLog>& log) {
  const auto launch = stagecraft::launch::launch_from_environment(stagecraft::launch::process_environment());
  const bool starts = (o.spawn || !o.hosts.empty()) && !launch;
  if (!o.dry_run && (!launch || launch->rank == 0)) check_outputs_of(o);
  // Before the log and the model start threads, which would receive the signals.
  std::optional<stagecraft::launch::StopSignals> signals;
  if (!o.dry_run && (starts || !o.run.checkpoint.folder.empty())) signals.emplace();
  // Before any output.
  if (!o.logs.empty() && !starts && !o.dry_run)
    log.emplace(o.logs, launch ? launch->rank : 0, launch ? launch->ranks : 1);
  // Reading a model may compute.
  if (!starts && !o.dry_run) stagecraft::device::prepare_device(o.device);
  std::optional<stagecraft::launch::Tether> tether;
  if (launch && std::getenv(stagecraft::launch::kTetherVariable)) tether.emplace(fmt::format("rank {}", launch->rank));
  const Job job(o);
  fit_options(o, job);
  if (o.dry_run) {
    std::cout << stagecraft::run::roles_text(job.plan);
    return 0;
  }
  const milliseconds deadline(static_cast<std::int64_t>(o.timeout_s * 1000));
  o.channel = choose_channel(o, launch || starts);
  const bool threads = !o.channel.empty() && stagecraft::channel::channel_by_name(o.channel).make_threads;
  if (threads) check_threads(o, launch);
  CheckpointOptions& checkpoint = o.run.checkpoint;
  checkpoint.data = o.data;
  if (!launch) check_state(o, job);
  if (starts) {
    if (signals->asked()) return 128 + signals->number();
    signals.reset();
    return start_ranks(o, stagecraft::to_int(job.plan.ranks().size()), arguments, deadline);
  }
  if (signals) checkpoint.stop = [&] { return signals->asked(); };
  checkpoint.tell = [](const std::string& text) { std::cerr << text + "\n"; };
  if (threads) return run_threads(job, o, deadline);
  if (launch) return run_process(*launch, job, o, deadline);
  throw CLI::ValidationError(
      "--channel",
      fmt::format("{} needs one process per rank: add --spawn, or start with torchrun, srun or mpirun", o.channel));
}

}  // namespace

int main(int argc, char** argv) {
  Options o;
  std::optional<stagecraft::launch::RankLog> log;  // must outlive the last message
  const std::vector<std::string> arguments = stagecraft::own_command(argc, argv);
  return stagecraft::run_computing_tool(
      {"run", "Trains a model according to a plan and measures the run.",
       "stagecraft run plan.json --data fashion-mnist --steps 50 --spawn -o measured.json\n"
       "  stagecraft run plan.json --data fashion-mnist --epochs 5 --validate-data fashion-mnist-test "
       "--validate-every 500\n"
       "  torchrun --no-python --nproc-per-node 2 stagecraft run plan.json --steps 50\n"
       "  stagecraft run plan.json --hosts hosts.txt --logs logs --steps 50\n\n"
       "Exit status, besides the usual ones below:\n"
       "  3             another rank failed or disappeared\n"
       "  4             this rank detected a missed deadline or a silent rank\n"
       "  75            ended by SIGINT or SIGTERM, after a checkpoint\n"
       "  128 + signal  killed\n"
       "With --spawn, the most specific status of all ranks: a rank's own failure, else 4, else 3.\n\n"
       "Environment (with another launcher): STAGECRAFT_SECRET is shared by the ranks of the run and keeps others "
       "out.\n"
       "STAGECRAFT_LISTEN is the address to listen on, if not the one that rank 0's host name resolves to.\n\n" +
           stagecraft::models_text()},
      argc, argv,
      [&](CLI::App& app) {
        o.given = [&app] { return stagecraft::given_options(app); };
        app.add_option("PLAN", o.plan, "plan.json of stagecraft plan")->required();
        app.add_option("--model", o.model, "model (default: the one in the plan)");
        app.add_option("--set", o.set, "model option key=value; overrides the plan's")->allow_extra_args(false);
        stagecraft::add_input_range_option(app, o.set);
        app.add_option("--data", o.data, "data source")->capture_default_str()->check(stagecraft::data_name());
        const auto steps =
            app.add_option("--steps", o.run.steps,
                           "total number of steps, including those before a resumed checkpoint; a plan that evaluates "
                           "(schedule forward) defaults to one pass over the data")
                ->capture_default_str()
                ->transform(stagecraft::integer<decltype(o.run.steps)>(1));
        app.add_option("--epochs", o.epochs,
                       "train for this many passes over the data instead of a number of steps; needs data that end")
            ->excludes(steps)
            ->transform(stagecraft::integer<decltype(o.epochs)>(1, kMostEpochs));
        app.add_option(
               "--log-every", o.report.every,
               "print a line, and write one of --metrics, every N steps (default: about ten lines in all and one "
               "after ten seconds without; metrics of every step)")
            ->type_name("N")
            ->transform(stagecraft::integer<decltype(o.report.every)>(1));
        app.add_option(
            "--metrics", o.report.metrics,
            "write loss, learning rate, times and gradient norm as JSON lines while the run goes on; --resume "
            "appends to the file");
        app.add_option("--tensorboard", o.report.tensorboard,
                       "write the same numbers at the same steps to a TensorBoard event file in this folder");
        const auto validate =
            app.add_option("--validate-data", o.validate_data,
                           "data source on which to validate, in evaluation mode; each sample is read once, in order")
                ->check(stagecraft::data_name());
        app.add_option("--validate-every", o.run.validation.every,
                       "validate every N steps and after the last one (default: only after the last one)")
            ->needs(validate)
            ->type_name("N")
            ->transform(stagecraft::integer<decltype(o.run.validation.every)>(1));
        app.add_option("--validate-samples", o.run.validation.samples,
                       "validate on this many samples from the beginning; data without an end need it")
            ->needs(validate)
            ->transform(stagecraft::integer<std::int64_t>(1));
        app.add_option(
               "--channel", o.channel,
               "local (ranks are threads), ucx or gloo (one process per rank, CPUs) or nccl (one process per rank, "
               "GPUs); default: local, or between processes ucx if all ranks have it")
            ->check(stagecraft::one_of("channel", stagecraft::channel::channel_names()));
        app.add_option("--device", o.device,
                       "cpu, cuda (each rank takes the GPU with its local rank's number) or cuda:N (all ranks use GPU "
                       "N)")
            ->capture_default_str()
            ->check(stagecraft::device_name());
        app.add_flag("--share-gpu", o.share_gpu,
                     "let ranks share a GPU, for testing; transfers between them go through the host");
        app.add_flag("--deterministic", o.deterministic,
                     "add replicas' gradients in rank order over nccl too, at the cost of memory and time; the other "
                     "channels always do");
        app.add_flag("--allow-tf32", o.allow_tf32,
                     "let GPUs round the inputs of float32 matrix products, convolutions and recurrent layers to TF32; "
                     "default: as the plan says");
        const auto here = app.add_flag("--spawn", o.spawn, "start one process per rank on this machine");
        app.add_option(
               "--hosts", o.hosts,
               "start one process per rank on the hosts in this file, one NAME [slots=N] per line, filled in order. "
               "The program, the working folder and all files must have the same paths on every host. Ranks meet at "
               "the first host, or at MASTER_ADDR and MASTER_PORT")
            ->excludes(here);
        app.add_option("--remote-shell", o.remote_shell,
                       "with --hosts: command that starts a rank; takes a host and a command line, like ssh")
            ->capture_default_str();
        app.add_option("--logs", o.logs, "folder for each rank's log, rank-N.log; rank 0 also writes to the terminal");
        app.add_flag("--dry-run", o.dry_run, "print which rank does what, then exit");
        const auto check = app.add_flag("--check", o.run.check,
                                        "compare losses and all gradients of every step with a single process");
        app.add_option("--expect", o.run.expected,
                       "compare losses, gradients, and final parameters and buffers with a record of the same "
                       "training in Python, written by stagecraft export-model --record")
            ->excludes(check);
        app.add_option_function<std::string>(
               "--on-nonfinite",
               [&](const std::string& text) {
                 o.run.on_nonfinite =
                     stagecraft::usage("--on-nonfinite", [&] { return stagecraft::stage::parse_on_nonfinite(text); });
               },
               "what to do if a loss or gradient is infinite or NaN: stop the run before the update (default), warn "
               "and continue, or skip the step on all ranks")
            ->type_name("WHAT");
        app.add_option("--threads", o.run.threads, "threads per rank")
            ->capture_default_str()
            ->transform(stagecraft::integer(1, stagecraft::kMostAtOnce));
        app.add_option("--timeout", o.timeout_s, "end the run if a rank is silent for this many seconds")
            ->capture_default_str()
            ->transform(stagecraft::number_from(stagecraft::kShortest, stagecraft::kLongest));
        app.add_option("--seed", o.run.seed, "random seed of weights, data and dropout")
            ->capture_default_str()
            ->transform(stagecraft::integer<decltype(o.run.seed)>(0));
        stagecraft::add_optimizer_options(app, o.run.optimizer);
        stagecraft::add_training_options(app, o.run.optimizer);
        const auto scale = app.add_option_function<std::string>(
            "--loss-scale",
            [&](const std::string& text) {
              o.run.loss_scale.fixed =
                  stagecraft::usage("--loss-scale", [&] { return stagecraft::stage::parse_loss_scale(text); });
            },
            "loss scale for float16 plans: a number, or dynamic (default): starts at 65536, halves after a step that "
            "overflows (which is skipped), doubles after --loss-scale-growth-interval steps without an overflow");
        const auto interval = app.add_option("--loss-scale-growth-interval", o.run.loss_scale.growth_interval,
                                             "steps without an overflow "
                                             "before a dynamic loss scale "
                                             "doubles")
                                  ->capture_default_str()
                                  ->type_name("STEPS")
                                  ->transform(stagecraft::integer<decltype(o.run.loss_scale.growth_interval)>(1));
        app.callback([&o, scale, interval, steps] {
          o.scales_loss = scale->count() + interval->count() > 0;
          o.steps_given = steps->count() > 0;
        });
        const auto folder =
            app.add_option("--checkpoint", o.run.checkpoint.folder,
                           "checkpoint folder, shared by all ranks. SIGINT and SIGTERM then end the run after the "
                           "current step, with a checkpoint and exit status 75");
        app.add_option("--keep", o.run.checkpoint.keep,
                       "number of newest checkpoints to keep; a checkpoint with infinities or NaNs replaces none")
            ->needs(folder)
            ->capture_default_str()
            ->transform(stagecraft::integer<decltype(o.run.checkpoint.keep)>(1));
        app.add_option("--checkpoint-every", o.run.checkpoint.every,
                       "steps between checkpoints; the last step always writes one")
            ->needs(folder)
            ->capture_default_str()
            ->transform(stagecraft::integer<decltype(o.run.checkpoint.every)>(1));
        app.add_flag("--resume", o.run.checkpoint.resume,
                     "resume from the newest complete checkpoint, if any; the plan may differ")
            ->needs(folder);
        app.add_option("--restart", o.restarts,
                       "with --spawn or --hosts: if a rank fails, restart all ranks from the newest checkpoint, at "
                       "most this many times")
            ->needs(folder)
            ->transform(stagecraft::integer(0));
        app.add_option(
            "--weights", o.run.checkpoint.weights,
            "initial parameters by name: a safetensors file, or a state dict from torch.save (.pt, .pth); a resumed "
            "checkpoint takes precedence");
        app.add_option("-o,--output", o.output, "output file for the measured timeline; - is standard output");
        app.add_option("--trace", o.trace, "write a Chrome trace of the run, for ui.perfetto.dev");
        stagecraft::add_force_option(app, o.force);
      },
      [&] {
        try {
          return run(o, arguments, log);
        } catch (const stagecraft::meeting::PeerError& e) {
          std::cerr << "stagecraft-run: " << stagecraft::message_of(e) << "\n";
          return stagecraft::launch::exit_status(e);
        }
      });
}
