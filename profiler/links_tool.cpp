#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <functional>
#include <iostream>
#include <memory>

#include "costmodel/command/tool.h"
#include "costmodel/errors.h"
#include "costmodel/format/files/files.h"
#include "costmodel/format/files/outputs.h"
#include "costmodel/format/topology_json.h"
#include "costmodel/text/progress.h"
#include "costmodel/text/units_text.h"
#include "executor/channel/table/channels.h"
#include "executor/device/device.h"
#include "executor/device/machine/program.h"
#include "executor/device/machine/provenance.h"
#include "executor/launch/launch.h"
#include "executor/launch/rank_group.h"
#include "executor/launch/spawn.h"
#include "executor/meeting/launch_info.h"
#include "executor/tool_options.h"
#include "profiler/links/links.h"
#include "profiler/links/links_channel.h"
#include "profiler/links/links_report.h"

namespace {

using stagecraft::profiler::LinkMeasurement;
using std::chrono::milliseconds;

struct Options {
  std::optional<int> ranks;  ///< absent: two, or all GPUs
  std::string channel;       ///< empty: that of threads, or between processes as in a run
  bool spawn = false;
  std::optional<stagecraft::Bytes> most_bytes;
  int threads = 1;
  double timeout_s = 60;
  std::string output;
  bool accept_untrusted = false;
  bool all = false;  ///< print every time
  bool force = false;
  stagecraft::profiler::LinksOptions links;
  stagecraft::AgreedOptions agreed;
  std::function<std::vector<std::string>()> agreed_lines;  ///< see AgreedOptions::lines
};

/// The channel that GPUs use.
const std::string& gpu_channel() { return stagecraft::channel::default_channel("cuda", true).name; }

/// The table of channels. Here, unlike in a run, one process has all GPUs.
std::string channels_help() {
  std::string out;
  for (const stagecraft::channel::ChannelKind& kind : stagecraft::channel::channels()) {
    const bool gpus = kind.name == gpu_channel();
    out += fmt::format("{}{} ({})", out.empty() ? "" : ", ", kind.name,
                       gpus ? "all GPUs of this machine, in this process" : kind.help);
  }
  return out;
}

/// Prints how much was measured, or with --all each time, and returns the reasons not to trust it.
std::vector<std::string> show(const LinkMeasurement& measured, const Options& o) {
  if (measured.curves.empty()) return {};
  if (o.all) {
    std::cerr << stagecraft::profiler::links_table(measured);
    for (const auto& curve : measured.curves) {
      std::cerr << fmt::format("{}: {}\n", stagecraft::profiler::curve_name(curve.operation, curve.ranks),
                               stagecraft::profiler::fit_text(curve));
    }
    if (measured.processing)
      std::cerr << "processor time of a message, " << stagecraft::profiler::processing_text(*measured.processing)
                << "\n";
  } else {
    std::cerr << fmt::format("measured {} between {}; --all prints their times\n",
                             stagecraft::count_text(measured.curves.size(), "operation"),
                             stagecraft::count_text(measured.ranks, "rank"));
  }
  stagecraft::warn_if_unsteady("stagecraft-links", measured.conditions);
  return stagecraft::profiler::distrust(measured);
}

/// Prints the levels, writes the topology and returns the exit status.
int finish(stagecraft::Topology topology, const std::vector<std::string>& reasons, const Options& o) {
  stagecraft::sign(topology.provenance);
  for (const stagecraft::Level& level : topology.levels) {
    std::cerr << fmt::format(
        "{}{}: latency {}, bandwidth {}/s\n", topology.name, topology.levels.size() > 1 ? ", " + level.name : "",
        format_seconds(level.link.latency),
        stagecraft::format_bytes(stagecraft::Bytes(static_cast<std::int64_t>(level.link.bandwidth.value))));
  }
  for (const std::string& reason : reasons) std::cerr << "not trusted: " + reason + "\n";
  if (!o.output.empty()) stagecraft::format::write_text(o.output, stagecraft::format::topology_json(topology));
  if (reasons.empty() || o.accept_untrusted) return 0;
  std::cerr << "the measurement is not trusted, see above, so the exit status is 1; with --accept-untrusted it is 0\n";
  return 1;
}

int finish(const LinkMeasurement& measured, const Options& o, stagecraft::Device device,
           stagecraft::Provenance provenance) {
  stagecraft::Topology topology =
      stagecraft::profiler::topology_of(measured, o.channel, std::move(device), std::move(provenance));
  return finish(std::move(topology), show(measured, o), o);
}

int finish(const LinkMeasurement& measured, const Options& o) {
  return finish(measured, o, stagecraft::device::device_here(measured.ranks),
                stagecraft::device::provenance_here("stagecraft-links"));
}

int finish(const stagecraft::profiler::MachineLinks& measured, const Options& o) {
  stagecraft::Topology topology = stagecraft::profiler::topology_of(
      measured, o.channel, stagecraft::device::device_here(measured.ranks_per_machine),
      stagecraft::device::provenance_here("stagecraft-links"));
  std::vector<std::string> reasons = show(measured.inside, o);
  for (const std::string& reason : show(measured.between, o)) reasons.push_back("between machines: " + reason);
  return finish(std::move(topology), reasons, o);
}

stagecraft::profiler::MachineLinks measure_machines(stagecraft::channel::Channel& channel,
                                                    const std::vector<int>& machines, const Options& o) {
  stagecraft::ProgressLine line;
  return stagecraft::profiler::measure_machines(channel, machines, o.links, o.threads,
                                                [&](const std::string& text) { line.show(o.channel + ": " + text); });
}

LinkMeasurement measure(stagecraft::channel::Channel& channel, const Options& o) {
  if (channel.rank() != 0) return stagecraft::profiler::measure_links(channel, o.links, o.threads);
  stagecraft::ProgressLine line;
  return stagecraft::profiler::measure_links(channel, o.links, o.threads,
                                             [&](const std::string& text) { line.show(o.channel + ": " + text); });
}

int run_gpus(const Options& o, milliseconds deadline) {
  const auto meter = stagecraft::profiler::make_nccl_meter(o.ranks, deadline);
  LinkMeasurement measured;
  {
    stagecraft::ProgressLine line;
    measured = stagecraft::profiler::measure_gpu_links(
        *meter, o.links, [&](const std::string& text) { line.show(o.channel + ": " + text); });
  }
  const stagecraft::device::GpuProperties gpu = stagecraft::device::gpu_properties(0);
  stagecraft::Provenance provenance = stagecraft::device::provenance_here("stagecraft-links");
  provenance.device = fmt::format("{} of {}; {}", measured.ranks, gpu.name, provenance.device);
  provenance.versions["cuda driver"] = gpu.driver;
  stagecraft::Device device{gpu.name, gpu.memory};
  device.kind = stagecraft::DeviceKind::Gpu;
  return finish(measured, o, std::move(device), std::move(provenance));
}

int run_threads(const Options& o, int ranks, milliseconds deadline) {
  const auto channels = stagecraft::channel::channel_by_name(o.channel).make_threads(ranks, deadline);
  LinkMeasurement measured;
  stagecraft::launch::run_as_threads(channels, [&](stagecraft::channel::Channel& channel) {
    LinkMeasurement links = measure(channel, o);
    if (channel.rank() == 0) measured = std::move(links);
  });
  return finish(measured, o);
}

int run_process(const stagecraft::meeting::LaunchInfo& launch, Options o, milliseconds deadline) {
  LinkMeasurement measured;
  std::optional<stagecraft::profiler::MachineLinks> of_machines;
  std::vector<int> machines;
  stagecraft::launch::run_rank_process(
      launch, deadline,
      {.channel = o.channel,
       .agreed = o.agreed_lines(),
       .prepare =
           [&](stagecraft::launch::Rendezvous& rendezvous, const std::string& channel,
               stagecraft::channel::ChannelSetup& setup) {
             o.channel = channel;
             machines = stagecraft::launch::machines_of(rendezvous);
             // The ranks of other machines wait while one measures.
             if (machines.back() > 0)
               setup.deadline +=
                   3 * std::chrono::ceil<milliseconds>(std::chrono::duration<double>(o.links.most_time.value));
           },
       .work =
           [&](stagecraft::launch::Rendezvous&, stagecraft::channel::Channel& channel) {
             if (machines.back() > 0) {
               of_machines = measure_machines(channel, machines, o);
             } else {
               measured = measure(channel, o);
             }
           }});
  if (launch.rank != 0) return 0;
  return of_machines ? finish(*of_machines, o) : finish(measured, o);
}

int run(Options o, const std::vector<std::string>& arguments) {
  using How = stagecraft::launch::RankStart::How;
  if (o.most_bytes) o.links.most_bytes = *o.most_bytes;
  const int ranks = o.ranks.value_or(2);
  stagecraft::usage("--max-bytes", [&] { (void)stagecraft::profiler::link_tasks(ranks, false, o.links); });
  const milliseconds deadline(static_cast<std::int64_t>(o.timeout_s * 1000));
  const std::string starter = o.spawn ? "--spawn" : "";
  const auto [launch, note] = stagecraft::launch::find_launch(stagecraft::launch::process_environment(), starter);
  if (!note.empty()) std::cerr << "note: " + note + "\n";
  const bool gpus = o.channel == gpu_channel();
  if (!launch || launch->rank == 0 || gpus)
    stagecraft::format::check_outputs({}, {{o.output, "stagecraft.topology"}}, o.force);
  if (gpus) return run_gpus(o, deadline);
  const auto start = stagecraft::usage("--channel", [&] {
    return stagecraft::launch::choose_start(
        {.channel = o.channel, .starter = starter, .starts_processes = true, .launch = launch});
  });
  if (ranks < 2) {
    throw CLI::ValidationError("--ranks",
                               fmt::format("is 1, must be at least 2 (1 is enough with --channel {})", gpu_channel()));
  }
  stagecraft::launch::check_rank_count(start, launch, ranks, fmt::format("--ranks is {}", ranks));
  o.channel = start.channel;
  if (start.how == How::Threads) return run_threads(o, ranks, deadline);
  if (start.how == How::Spawn) return stagecraft::launch::spawn({ranks, arguments, {}}, deadline);
  return run_process(*launch, o, deadline);
}

}  // namespace

int main(int argc, char** argv) {
  Options o;
  return stagecraft::run_computing_tool(
      {"links", "Measures transfers and collectives between ranks, by message size.",
       "stagecraft links --ranks 2 --spawn -o topology.json\n  stagecraft links --ranks 4 --max-bytes 16MiB -o "
       "topology.json\n  stagecraft links --channel nccl --max-bytes 1GiB --sizes-per-octave 2 -o topology.json\n\n"
       "Exit status, besides the usual ones below:\n"
       "  3  another rank failed or disappeared\n"
       "  4  this rank detected a missed deadline or a silent rank"},
      argc, argv,
      [&](CLI::App& app) {
        o.agreed_lines = [&app, &o] { return o.agreed.lines(app); };
        app.add_option("--ranks", o.ranks, "number of ranks (default: 2; with nccl, all GPUs)")
            ->transform(stagecraft::integer(1, stagecraft::kMostAtOnce));
        app.add_option(
               "--channel", o.channel,
               fmt::format("{}. For ucx and gloo, `links` starts the processes unless a launcher has. Default: {}, or "
                           "with --spawn the channel that `run --spawn` uses",
                           channels_help(), stagecraft::channel::default_channel("cpu", false).name))
            ->check(stagecraft::one_of("channel", stagecraft::channel::channel_names()));
        app.add_flag("--spawn", o.spawn, "start one process per rank");
        stagecraft::add_bytes_option(app, "--max-bytes", o.most_bytes, "largest message (default: 64 MiB)");
        app.add_option("--sizes-per-octave", o.links.sizes_per_octave, "messages per doubling of size")
            ->capture_default_str()
            ->transform(stagecraft::integer(1, 64));
        app.add_option("--seconds", o.links.most_time.value,
                       "approximate measuring time; each curve gets an equal share of the remaining time, but at least "
                       "5 rounds")
            ->capture_default_str()
            ->transform(stagecraft::number_above(0));
        app.add_option("--threads", o.threads, "threads per rank")
            ->capture_default_str()
            ->transform(stagecraft::integer(1, stagecraft::kMostAtOnce));
        o.agreed.per_rank(app.add_option("--timeout", o.timeout_s, "stop if a rank is silent for this many seconds")
                              ->capture_default_str()
                              ->transform(stagecraft::number_from(stagecraft::kShortest, stagecraft::kLongest)));
        stagecraft::add_accept_untrusted(app, o.accept_untrusted, "exit with 0 even if the measurement is not trusted");
        o.agreed.per_rank(app.get_option("--accept-untrusted"));
        o.agreed.per_rank(app.add_option("-o,--output", o.output, "output file for the topology; - is standard output")
                              ->type_name("FILE"));
        o.agreed.per_rank(app.add_flag("--all", o.all, "print each measured time and the lines through them"));
        stagecraft::add_force_option(app, o.force);
        o.agreed.per_rank(app.get_option("--force"));
      },
      [&] { return run(o, stagecraft::own_command(argc, argv)); });
}
