#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>

#include "executor/meeting/launch_info.h"

namespace stagecraft::launch {

/// The launch that these environment variables describe: torchrun (RANK, WORLD_SIZE, LOCAL_RANK, MASTER_ADDR,
/// MASTER_PORT, TORCHELASTIC_USE_AGENT_STORE, TORCHELASTIC_RUN_ID, TORCHELASTIC_RESTART_COUNT), a task of Slurm's srun
/// (SLURM_PROCID, SLURM_NTASKS, SLURM_LOCALID, SLURM_STEP_NODELIST or SLURM_JOB_NODELIST, SLURM_JOB_ID, SLURM_STEP_ID),
/// Open MPI (OMPI_COMM_WORLD_RANK, _SIZE, _LOCAL_RANK), in this order; MASTER_ADDR and MASTER_PORT override Slurm and
/// Open MPI. Absent if none of them is set, and in sbatch's script and salloc's shell, which are not tasks.
/// STAGECRAFT_SECRET and STAGECRAFT_LISTEN are read with any of them. Throws std::invalid_argument naming a variable
/// that is missing, not a number or out of range.
[[nodiscard]] std::optional<meeting::LaunchInfo> launch_from_environment(
    const std::map<std::string, std::string>& environment);

/// The launch of a process whose command line may start ranks itself.
struct FoundLaunch {
  std::optional<meeting::LaunchInfo> launch = {};
  std::string note = {};  ///< says which variables were ignored; empty: none
};

/// As launch_from_environment if `starter` (the option that starts the ranks, "--spawn") is empty or if `spawn` started
/// this process. Otherwise no launch, whatever another launcher has set: an interactive shell under srun and a pod have
/// such variables too.
[[nodiscard]] FoundLaunch find_launch(const std::map<std::string, std::string>& environment,
                                      const std::string& starter);

/// A port in 20000..31999 for the run with this number (a job's or a process's): runs of different jobs rarely share
/// it, no launcher uses it, and it is below the usual ephemeral ports.
[[nodiscard]] std::uint16_t port_of_job(std::int64_t job);
/// Index of the GPU on which a rank computes, of `gpus` visible ones: its local rank; the only one, if Slurm gives each
/// task its own; with `share`, the local rank modulo their number. Throws std::invalid_argument, with advice, if there
/// are too few.
[[nodiscard]] int gpu_of_rank(const meeting::LaunchInfo& launch, int gpus, bool share);

/// The environment variables of this process.
[[nodiscard]] std::map<std::string, std::string> process_environment();

}  // namespace stagecraft::launch
