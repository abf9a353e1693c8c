#pragma once

#include <chrono>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "executor/channel/channel.h"

namespace stagecraft {

/// Where this process stands among those of a run, and where they meet.
struct LaunchInfo {
  int rank = 0;
  int ranks = 1;
  int local_rank = 0;
  std::string host = "127.0.0.1";  ///< of the meeting point
  std::uint16_t port = 0;
  bool served = false;       ///< the spawning parent serves the meeting point; else rank 0 does
  bool agent = false;        ///< host and port are those of torchrun's agent, which rank 0 tells the meeting point's
  std::string listen;        ///< the only address at which rank 0 listens; empty: the one that `host` stands for
  std::string secret;        ///< who does not know it is not let in
  std::string run_id = "0";  ///< keeps restarts and neighbouring runs apart
  std::string launcher;      ///< "torchrun", "slurm", "open mpi", "stagecraft"; for messages
};

/// The launch that these environment variables describe: torchrun (RANK, WORLD_SIZE, LOCAL_RANK, MASTER_ADDR,
/// MASTER_PORT, TORCHELASTIC_USE_AGENT_STORE, TORCHELASTIC_RUN_ID, TORCHELASTIC_RESTART_COUNT), a task of Slurm's srun
/// (SLURM_PROCID, SLURM_NTASKS, SLURM_LOCALID, SLURM_STEP_NODELIST or SLURM_JOB_NODELIST, SLURM_JOB_ID, SLURM_STEP_ID),
/// Open MPI (OMPI_COMM_WORLD_RANK, _SIZE, _LOCAL_RANK), in this order; MASTER_ADDR and MASTER_PORT win over what Slurm
/// and Open MPI say. Absent if there is none of them, and in sbatch's script and salloc's shell, which are no tasks.
/// STAGECRAFT_SECRET and STAGECRAFT_LISTEN are taken with any of them. Throws std::invalid_argument naming the variable
/// for one that is missing, not a number or out of range.
[[nodiscard]] std::optional<LaunchInfo> launch_from_environment(const std::map<std::string, std::string>& environment);
/// A port for the run of this number (of a job, of a process), one of 20000..31999: runs of different jobs rarely share
/// it, and it is no launcher's and below the usual ephemeral ones.
[[nodiscard]] std::uint16_t port_of_job(std::int64_t job);
/// Index of the GPU that a rank computes on, of `gpus` that it sees: that of its local rank; the only one, where Slurm
/// gives each task one of its own; with `share`, the local rank modulo their number. Throws std::invalid_argument if
/// there are too few, saying what helps.
[[nodiscard]] int gpu_of_rank(const LaunchInfo& launch, int gpus, bool share);

/// The variables of this process.
[[nodiscard]] std::map<std::string, std::string> process_environment();

/// The meeting point of a run: a key-value store over TCP, kept by rank 0 or by who started the run.
class Rendezvous {
 public:
  virtual ~Rendezvous() = default;
  /// Publishes this rank's value under `key` and returns everyone's, by rank. Throws ChannelError naming the ranks
  /// that did not come before the deadline.
  [[nodiscard]] virtual std::vector<std::string> exchange(const std::string& key, const std::string& value) = 0;
  /// Tells all ranks that this one failed and why; the first reason stays, and is printed here if it is another's.
  /// To be called while this rank's channel is still there: the others would take its end for the cause. Never throws.
  virtual void fail(const std::string& reason) noexcept = 0;
  /// What this rank does, which its heartbeat tells the others for their reports; to be given to the rank's channel.
  [[nodiscard]] virtual std::shared_ptr<Activity> activity() const = 0;
  /// This rank is done; its silence is no failure from now on. If it keeps the meeting point, returns when all others
  /// have left too. A rendezvous that ends with neither leave nor fail fails.
  virtual void leave() noexcept = 0;
};

/// Joins the run. A thread watches the store: when any rank fails, falls silent for longer than `deadline`, or the
/// store itself is gone, it prints what happened on standard error and ends the process with kPeerFailed, or kHung if
/// it is this rank that found a silence. The rank that found the cause of the end also prints a line about each rank:
/// what it does, whom it waits for and for how long, or that it is silent or has left; every rank does if the store is
/// gone, and none if no rank has begun anything. Throws ChannelError if the meeting point is not reached before the
/// deadline.
[[nodiscard]] std::unique_ptr<Rendezvous> join(const LaunchInfo& launch, std::chrono::milliseconds deadline);

/// Exit status of a rank that ended because of another one.
inline constexpr int kPeerFailed = 3;
/// Exit status of a rank that waited in vain: a deadline passed, or a rank fell silent.
inline constexpr int kHung = 4;
/// Exit status of a rank that was asked to stop, and did so with a checkpoint. sysexits.h calls 75 EX_TEMPFAIL: start
/// again later.
inline constexpr int kStopped = 75;

/// The Gloo channel of a run over TCP; to be made after `join`. Listens on the interface that GLOO_SOCKET_IFNAME names,
/// else at LaunchInfo::listen, else at this machine's address on the way to the meeting point, which is loopback if
/// that is there. All ranks prove to each other over the new connections that they know the run's secret. Collective:
/// returns when all ranks are connected. Throws ChannelError if they are not before the deadline. Waits are noted in
/// `activity`, if given.
[[nodiscard]] std::unique_ptr<Channel> make_gloo_channel(const LaunchInfo& launch, std::chrono::milliseconds deadline,
                                                         std::shared_ptr<Activity> activity = nullptr);

/// The exit status that tells an error's cause: 1, kHung or kPeerFailed.
[[nodiscard]] int exit_status(const ChannelError& error);

}  // namespace stagecraft
