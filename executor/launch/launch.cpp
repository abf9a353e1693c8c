#include "executor/launch/launch.h"

#include <fmt/format.h>

#include <stdexcept>

#include "costmodel/index.h"
#include "costmodel/text/number.h"
#include "executor/meeting/launch_info.h"
#include "executor/meeting/secret.h"

extern char** environ;

namespace stagecraft::launch {
namespace {

using Environment = std::map<std::string, std::string>;

std::optional<std::string> find(const Environment& environment, const std::string& name) {
  const auto at = environment.find(name);
  if (at == environment.end() || at->second.empty()) return std::nullopt;
  return at->second;
}

std::string need(const Environment& environment, const std::string& name, const std::string& beside) {
  if (auto value = find(environment, name)) return *value;
  throw std::invalid_argument(
      fmt::format("environment: {0} is set, but {1} is not; set {1} too, or unset {0}, or let --spawn "
                  "start the ranks",
                  beside, name));
}

std::int64_t to_number(const std::string& name, const std::string& text, std::int64_t least, std::int64_t most) {
  const std::optional<std::int64_t> value = number_in<std::int64_t>(text);
  if (!value) {
    throw std::invalid_argument(fmt::format("environment: {} is \"{}\", which is not an integer", name, text));
  }
  if (*value < least || *value > most) {
    throw std::invalid_argument(fmt::format("environment: {} is {}, must be {} to {}", name, *value, least, most));
  }
  return *value;
}

constexpr std::int64_t kMostRanks = 1 << 20;
constexpr std::int64_t kMostIds = std::int64_t{1} << 62;

/// Begins the TORCHELASTIC_RUN_ID of ranks that `spawn` starts.
constexpr const char* kOwnRuns = "stagecraft-";

/// The ranks in three variables.
meeting::LaunchInfo ranks_from(const Environment& environment, const std::string& rank, const std::string& ranks,
                               const std::string& local_rank) {
  meeting::LaunchInfo launch;
  launch.ranks = to_int(to_number(ranks, need(environment, ranks, rank), 1, kMostRanks));
  launch.rank = to_int(to_number(rank, need(environment, rank, rank), 0, launch.ranks - 1));
  launch.local_rank = to_int(to_number(local_rank, need(environment, local_rank, rank), 0, launch.ranks - 1));
  return launch;
}

/// The first host of a Slurm node list: "node03" of "node[03-05,9],b1".
std::string first_host(const std::string& name, const std::string& list) {
  std::string host;
  for (std::size_t i = 0; i < list.size() && list[i] != ','; ++i) {
    if (list[i] != '[') {
      host += list[i];
      continue;
    }
    const std::size_t close = list.find(']', i);
    const std::size_t end = list.find_first_of(",-]", i + 1);
    if (close == std::string::npos || end == i + 1) {
      host.clear();
      break;
    }
    host += list.substr(i + 1, end - i - 1);
    i = close;
  }
  if (host.empty() || host.find(']') != std::string::npos) {
    throw std::invalid_argument(
        fmt::format("environment: {} is \"{}\", which is not a node list such as \"node[03-05,9],b1\"", name, list));
  }
  return host;
}

meeting::LaunchInfo from_torchrun(const Environment& environment) {
  meeting::LaunchInfo launch = ranks_from(environment, "RANK", "WORLD_SIZE", "LOCAL_RANK");
  launch.host = need(environment, "MASTER_ADDR", "RANK");
  launch.port =
      static_cast<std::uint16_t>(to_number("MASTER_PORT", need(environment, "MASTER_PORT", "RANK"), 1, 65535));
  const std::string id = find(environment, "TORCHELASTIC_RUN_ID").value_or("0");
  launch.run_id = id + "." + find(environment, "TORCHELASTIC_RESTART_COUNT").value_or("0");
  launch.launcher = id.starts_with(kOwnRuns) ? "stagecraft" : "torchrun";
  const bool store = find(environment, "TORCHELASTIC_USE_AGENT_STORE") == "True";
  launch.served = store && launch.launcher == "stagecraft";
  launch.agent = store && !launch.served;
  return launch;
}

/// MASTER_ADDR and MASTER_PORT, if set, override the launcher.
void prefer_master(const Environment& environment, meeting::LaunchInfo& launch) {
  if (auto host = find(environment, "MASTER_ADDR")) launch.host = *host;
  if (auto port = find(environment, "MASTER_PORT")) {
    launch.port = static_cast<std::uint16_t>(to_number("MASTER_PORT", *port, 1, 65535));
  }
}

/// Whether srun started this process as a task. sbatch's script and salloc's shell have SLURM_PROCID too, but no step
/// number, or a reserved one.
bool is_slurm_task(const Environment& environment) {
  const auto step = find(environment, "SLURM_STEP_ID");
  constexpr std::int64_t kFirstReserved = 0xfffffff0;
  return find(environment, "SLURM_PROCID") && step && to_number("SLURM_STEP_ID", *step, 0, kMostIds) < kFirstReserved;
}

meeting::LaunchInfo from_slurm(const Environment& environment) {
  meeting::LaunchInfo launch = ranks_from(environment, "SLURM_PROCID", "SLURM_NTASKS", "SLURM_LOCALID");
  launch.launcher = "slurm";
  const std::int64_t job = to_number("SLURM_JOB_ID", need(environment, "SLURM_JOB_ID", "SLURM_PROCID"), 0, kMostIds);
  const std::int64_t step = to_number("SLURM_STEP_ID", need(environment, "SLURM_STEP_ID", "SLURM_PROCID"), 0, kMostIds);
  launch.run_id = fmt::format("{}.{}", job, step);
  launch.port = port_of_job(job + step);
  if (!find(environment, "MASTER_ADDR")) {
    const std::string name = find(environment, "SLURM_STEP_NODELIST") ? "SLURM_STEP_NODELIST" : "SLURM_JOB_NODELIST";
    launch.host = first_host(name, need(environment, name, "SLURM_PROCID"));
  }
  prefer_master(environment, launch);
  return launch;
}

meeting::LaunchInfo from_open_mpi(const Environment& environment) {
  meeting::LaunchInfo launch =
      ranks_from(environment, "OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_RANK");
  launch.launcher = "open mpi";
  launch.port = 29500;
  const std::string job_id = "OMPI_MCA_ess_base_jobid";
  if (auto job = find(environment, job_id)) {
    launch.run_id = *job;
    launch.port = port_of_job(to_number(job_id, *job, 0, kMostIds));
  }
  if (!find(environment, "MASTER_ADDR")) {
    const std::string local = "OMPI_COMM_WORLD_LOCAL_SIZE";
    if (to_number(local, need(environment, local, "OMPI_COMM_WORLD_RANK"), 1, kMostRanks) != launch.ranks) {
      throw std::invalid_argument(
          "environment: Open MPI does not say where rank 0 runs; set it with mpirun -x MASTER_ADDR=HOST");
    }
  }
  prefer_master(environment, launch);
  return launch;
}

}  // namespace

std::uint16_t port_of_job(std::int64_t job) { return static_cast<std::uint16_t>(20000 + job % 12000); }

std::optional<meeting::LaunchInfo> launch_from_environment(const std::map<std::string, std::string>& environment) {
  std::optional<meeting::LaunchInfo> launch;
  if (find(environment, "RANK")) {
    launch = from_torchrun(environment);
  } else if (is_slurm_task(environment)) {
    launch = from_slurm(environment);
  } else if (find(environment, "OMPI_COMM_WORLD_RANK")) {
    launch = from_open_mpi(environment);
  }
  if (launch) {
    launch->secret = find(environment, meeting::kSecretVariable).value_or("");
    launch->listen = find(environment, "STAGECRAFT_LISTEN").value_or("");
  }
  return launch;
}

FoundLaunch find_launch(const std::map<std::string, std::string>& environment, const std::string& starter) {
  const bool ours = find(environment, "TORCHELASTIC_RUN_ID").value_or("").starts_with(kOwnRuns);
  if (starter.empty() || ours) return {launch_from_environment(environment), ""};
  std::string variable;
  if (find(environment, "RANK")) {
    variable = "RANK";
  } else if (is_slurm_task(environment)) {
    variable = "SLURM_PROCID";
  } else if (find(environment, "OMPI_COMM_WORLD_RANK")) {
    variable = "OMPI_COMM_WORLD_RANK";
  }
  if (variable.empty()) return {};
  return {std::nullopt,
          fmt::format("{} starts all ranks of the run: {}={} and other variables of a launcher are ignored", starter,
                      variable, *find(environment, variable))};
}

int gpu_of_rank(const meeting::LaunchInfo& launch, int gpus, bool share) {
  if (gpus > 0 && share) return launch.local_rank % gpus;
  if (gpus == 1 && launch.launcher == "slurm") return 0;
  if (launch.local_rank < gpus) return launch.local_rank;
  throw std::invalid_argument(
      fmt::format("rank {} has local rank {} on a machine with {} GPU{}: start fewer ranks there, or use --share-gpu",
                  launch.rank, launch.local_rank + 1, gpus, gpus == 1 ? "" : "s"));
}

std::map<std::string, std::string> process_environment() {
  std::map<std::string, std::string> variables;
  for (char** entry = environ; *entry != nullptr; ++entry) {
    const std::string text = *entry;
    const std::size_t equals = text.find('=');
    if (equals != std::string::npos) variables[text.substr(0, equals)] = text.substr(equals + 1);
  }
  return variables;
}

}  // namespace stagecraft::launch
