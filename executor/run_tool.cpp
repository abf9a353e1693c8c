#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <iostream>

#include "costmodel/command/tool.h"
#include "costmodel/errors.h"
#include "costmodel/format/files/files.h"
#include "costmodel/format/timeline_json.h"
#include "costmodel/format/trace_events.h"
#include "costmodel/index.h"
#include "costmodel/prediction/cards.h"
#include "costmodel/prediction/predict.h"
#include "executor/device/device.h"
#include "executor/device/machine/provenance.h"
#include "executor/launch/hosts.h"
#include "executor/launch/launch.h"
#include "executor/launch/rank_group.h"
#include "executor/launch/rank_log.h"
#include "executor/launch/rendezvous.h"
#include "executor/launch/spawn.h"
#include "executor/launch/stop_signals.h"
#include "executor/meeting/launch_info.h"
#include "executor/replan_command.h"
#include "executor/run/binding/nccl_calls.h"
#include "executor/run/run.h"
#include "executor/run/run_job.h"
#include "executor/run/run_report.h"
#include "executor/run_command.h"
#include "executor/tool_options.h"

namespace {

using stagecraft::Measurement;
using stagecraft::RunCommand;
using stagecraft::meeting::LaunchInfo;
using stagecraft::run::RunJob;
using stagecraft::run::RunResult;
using std::chrono::milliseconds;

/// Waits in the channel may last this many deadlines before they count as stuck.
constexpr int kPatience = 10;

void write_measurement(const RunCommand& o, Measurement measurement) {
  if (measurement.timeline.ranks > 1) measurement.channel = o.channel;
  measurement.provenance = stagecraft::device::provenance_here("stagecraft-run", o.run.device);
  stagecraft::sign(measurement.provenance);
  stagecraft::format::write_text(o.output, stagecraft::format::measurement_json(measurement));
}

/// Call when the device is known. `o` must outlive the run.
void save_as_it_goes(RunCommand& o) {
  if (stagecraft::saves_as_it_goes(o)) o.run.save = [&o](const Measurement& sofar) { write_measurement(o, sofar); };
}

/// Exit status of every rank after the run.
int status(const RunResult& result, const RunCommand& o) {
  return result.steps_done < o.run.steps && !result.evaluation ? stagecraft::launch::kStopped : 0;
}

/// The plan's work of a sample, with the peak of the devices that the run uses in place of the planned ones.
stagecraft::SampleWork work_here(const RunCommand& o, const stagecraft::BoundPlan& bound) {
  const stagecraft::Plan& plan = bound.plan();
  stagecraft::SampleWork out = plan.sample_work;
  out.peak.reset();
  out.peak_of.clear();
  const std::size_t ranks = bound.ranks().size();
  if (o.run.device.is_cpu() || (ranks > 1 && (o.share_gpu || o.device != "cuda"))) return out;
  const std::string name = stagecraft::device::provenance_here("stagecraft-run", o.run.device).device;
  if (const auto peak = stagecraft::known_peak(name, plan.dtype, o.allow_tf32)) {
    out.peak = stagecraft::FlopsPerSecond(peak->rate.value * static_cast<double>(ranks));
    out.peak_of = peak->of;
  }
  return out;
}

int finish(const RunResult& result, const RunCommand& o, const stagecraft::BoundPlan& plan,
           const std::optional<stagecraft::run::WholePass>& pass) {
  const auto& m = result.measurement;
  if (m.timeline.steps.empty()) {
    std::cerr << fmt::format("nothing to do: {} of {} steps are already done\n", result.first_step, o.run.steps);
    return 0;
  }
  if (result.evaluation) {
    std::cerr << stagecraft::run::evaluation_text(*result.evaluation, *m.microbatch_samples, pass) + "\n";
  } else {
    std::cerr << stagecraft::run::closing_text(m, stagecraft::step_in_run(plan.plan()), work_here(o, plan)) + "\n";
  }
  if (result.nonfinite_steps > 0) {
    std::cerr << fmt::format("{} of {} steps had infinite or NaN values{}\n", result.nonfinite_steps, m.losses.size(),
                             o.run.on_nonfinite == stagecraft::stage::OnNonfinite::Skip ? " and were skipped" : "");
  }
  if (result.loss_scale) {
    std::cerr << fmt::format("final loss scale {:g}; {} of {} steps overflowed and were skipped\n",
                             result.loss_scale->scale, result.skipped_steps, m.losses.size());
  }
  stagecraft::warn_if_unsteady("stagecraft-run", m.conditions);
  for (const std::string& reason : stagecraft::crowded_reasons(m.conditions, "the run"))
    std::cerr << "not trusted: " + reason + "\n";
  if (!o.output.empty()) write_measurement(o, m);
  if (!o.trace.empty())
    stagecraft::format::write_text(o.trace, stagecraft::format::chrome_trace(m.timeline, m.model + ", measured"));
  if (result.check) {
    if (!o.output.empty()) {
      std::cerr << "note: the comparison made the steps in " << o.output << " longer; measure times without it\n";
    }
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

void require_gpu() {
  if (const auto reason = stagecraft::device::no_gpu_reason())
    throw stagecraft::DeviceError(stagecraft::ErrorKind::NoGpu, *reason);
}

/// The device on which this rank computes.
c10::Device open_rank_device(const RunCommand& o, const LaunchInfo& launch) {
  if (o.device != "cuda") return stagecraft::device::open_device(o.device, o.allow_tf32);
  require_gpu();
  return stagecraft::device::open_device(
      fmt::format("cuda:{}", stagecraft::launch::gpu_of_rank(launch, stagecraft::device::gpu_count(), o.share_gpu)),
      o.allow_tf32);
}

/// Throws unless this machine has a GPU for each rank that --spawn starts.
void check_gpus(const RunCommand& o, int ranks) {
  require_gpu();
  LaunchInfo last;
  last.ranks = ranks;
  last.rank = last.local_rank = ranks - 1;
  (void)stagecraft::launch::gpu_of_rank(last, stagecraft::device::gpu_count(), o.share_gpu);
}

/// What a user may not have meant; for rank 0, when all ranks are there.
void say_assumptions(const RunCommand& o, const RunJob& job) {
  if (!o.data_given) std::cerr << "note: no --data given, the samples are random\n";
  const std::string& planned = job.plan.plan().optimizer;
  const std::string& used = o.run.optimizer.name;
  if (job.trains() && !planned.empty() && planned != used) {
    stagecraft::warn("stagecraft-run",
                     fmt::format("the plan was made for --optimizer {}, this run uses {}: its time and memory differ "
                                 "from the prediction; profile and plan with --optimizer {}",
                                 planned, used, used));
  }
}

int run_process(const LaunchInfo& launch, const RunJob& job, RunCommand& o, milliseconds deadline) {
  RunResult result;
  stagecraft::launch::RankWork rank{.channel = o.channel, .device = stagecraft::device_kind(o)};
  if (launch.ranks > 1) rank.agreed = stagecraft::agreed_lines(o, job.plan);
  rank.prepare = [&](stagecraft::launch::Rendezvous&, const std::string& channel,
                     stagecraft::channel::ChannelSetup& setup) {
    o.channel = channel;
    o.run.device = open_rank_device(o, launch);
    save_as_it_goes(o);
    // The heartbeat detects dead and stopped ranks within the deadline; a wait may last as long as a peer computes.
    setup.deadline = kPatience * deadline;
    setup.device = o.run.device;
    setup.share_gpu = o.share_gpu;
    setup.deterministic = o.deterministic;
    setup.program = [&] { return stagecraft::run::proved_nccl_program(job.bound, o.run.steps); };
  };
  rank.work = [&](stagecraft::launch::Rendezvous& rendezvous, stagecraft::channel::Channel& channel) {
    std::optional<stagecraft::run::StepReporter> reporter;
    if (launch.rank == 0) {
      say_assumptions(o, job);
      reporter.emplace(job.plan.plan(), o.report);
    }
    result = stagecraft::run::run_rank(job.bound, *job.data, o.run, launch.rank, channel,
                                       stagecraft::launch::common_clock(rendezvous),
                                       [&](const stagecraft::run::Progress& p) { (*reporter)(p); });
  };
  stagecraft::launch::run_rank_process(launch, deadline, rank);
  return launch.rank == 0 ? finish(result, o, job.plan, job.pass) : status(result, o);
}

int run_threads(const RunJob& job, RunCommand& o, milliseconds deadline) {
  o.run.device = stagecraft::device::open_device(o.device, o.allow_tf32);
  save_as_it_goes(o);
  say_assumptions(o, job);
  stagecraft::run::StepReporter reporter(job.plan.plan(), o.report);
  return finish(stagecraft::run::run_local(job.bound, *job.data, o.run, kPatience * deadline,
                                           [&](const stagecraft::run::Progress& p) { reporter(p); }),
                o, job.plan, job.pass);
}

/// Says where a run that failed can continue, if it has a complete checkpoint.
void name_checkpoint(const RunCommand& o) {
  const std::string& folder = o.run.checkpoint.folder;
  if (folder.empty()) return;
  try {
    if (const auto found = stagecraft::checkpoint::latest_checkpoint(folder, [](const std::string&) {})) {
      std::cerr << fmt::format("note: the newest complete checkpoint is {}; use --resume to continue from it\n",
                               found->path);
    } else {
      std::cerr << fmt::format("note: {} has no complete checkpoint\n", folder);
    }
  } catch (const stagecraft::FormatError&) {  // the folder cannot be read: the run has said why it ended
  }
}

/// The roles of the ranks with the host of each, then what is not as the file may have meant.
std::string hosts_and_roles_text(const RunCommand& o, const stagecraft::BoundPlan& plan) {
  const auto found = stagecraft::launch::resolve_hosts(stagecraft::launch::read_hosts(o.hosts),
                                                       stagecraft::to_int(plan.ranks().size()),
                                                       stagecraft::launch::process_environment());
  std::string out = stagecraft::run::roles_text(plan, found.of_rank);
  for (const std::string& host : found.idle) out += fmt::format("host {}: no rank\n", host);
  out += fmt::format("the ranks meet at {}\n", found.meeting);
  if (!found.unknown.empty()) {
    stagecraft::warn("stagecraft-run",
                     fmt::format("{}: this machine finds no address for {}: correct the name, unless the remote shell "
                                 "and the hosts know it",
                                 o.hosts, fmt::join(found.unknown, ", ")));
  }
  return out;
}

/// Starts one process per rank, here or on the hosts, and waits for them.
int start_ranks(const RunCommand& o, const RunJob& job, const std::vector<std::string>& arguments,
                milliseconds deadline) {
  stagecraft::launch::RankCommand first{job.ranks(), arguments, {}};
  if (!o.hosts.empty()) first.hosts = stagecraft::launch::read_hosts(o.hosts);
  stagecraft::launch::RankCommand next = first;
  if (!o.run.checkpoint.resume) next.arguments.emplace_back("--resume");
  stagecraft::launch::SpawnOptions options;
  options.restarts = o.restarts;
  options.remote_shell = o.remote_shell;
  options.again = [&](const stagecraft::launch::FailedRank&) { return next; };
  std::optional<stagecraft::Replanner> replanner;
  if (!o.replan.empty()) {
    replanner.emplace(o, job.plan.plan(), next);
    options.again = [&](const stagecraft::launch::FailedRank& failed) { return replanner->again(failed); };
  }
  if (!o.logs.empty()) stagecraft::launch::check_log_folder(o.logs);
  const int status = stagecraft::launch::spawn(first, deadline, options);
  if (status != 0 && status != stagecraft::launch::kStopped) name_checkpoint(o);
  return status;
}

int run(RunCommand o, const std::vector<std::string>& arguments, std::optional<stagecraft::launch::RankLog>& log) {
  using How = stagecraft::launch::RankStart::How;
  const std::string starter = o.spawn ? "--spawn" : !o.hosts.empty() ? "--hosts" : "";
  const auto [launch, note] = stagecraft::launch::find_launch(stagecraft::launch::process_environment(), starter);
  if (!note.empty()) std::cerr << "note: " + note + "\n";
  const bool starts = !starter.empty() && !launch;
  if (!o.dry_run && (!launch || launch->rank == 0)) stagecraft::check_outputs(o);
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
  const RunJob job(stagecraft::job_request(o));
  stagecraft::fit(o, job);
  if (o.dry_run) {
    std::cout << (o.hosts.empty() ? stagecraft::run::roles_text(job.plan) : hosts_and_roles_text(o, job.plan));
    return 0;
  }
  const auto start = stagecraft::usage("--channel", [&] {
    return stagecraft::launch::choose_start(
        {.channel = o.channel, .device = stagecraft::device_kind(o), .starter = starter, .launch = launch});
  });
  stagecraft::launch::check_rank_count(start, launch, job.ranks(),
                                       fmt::format("{}: the plan needs {} ranks", o.plan, job.ranks()));
  o.channel = start.channel;
  stagecraft::run::CheckpointOptions& checkpoint = o.run.checkpoint;
  checkpoint.data = o.data;
  if (!launch) {
    stagecraft::run::check_state(job, o.run);
    if (o.spawn && o.device == "cuda") check_gpus(o, job.ranks());
  }
  const milliseconds deadline(static_cast<std::int64_t>(o.timeout_s * 1000));
  if (start.how == How::Spawn) {
    if (signals->asked()) return 128 + signals->number();
    signals.reset();
    return start_ranks(o, job, arguments, deadline);
  }
  if (signals) checkpoint.stop = [&] { return signals->asked(); };
  checkpoint.tell = [](const std::string& text) { std::cerr << text + "\n"; };
  try {
    return start.how == How::Process ? run_process(*launch, job, o, deadline) : run_threads(job, o, deadline);
  } catch (...) {
    // The process that starts ranks says it for them.
    if (!launch || (launch->rank == 0 && launch->launcher != "stagecraft")) name_checkpoint(o);
    throw;
  }
}

}  // namespace

int main(int argc, char** argv) {
  RunCommand command;
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
      argc, argv, [&](CLI::App& app) { stagecraft::add_run_options(app, command); },
      [&] { return run(command, arguments, log); });
}
