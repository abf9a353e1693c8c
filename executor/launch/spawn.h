#pragma once

#include <chrono>
#include <functional>
#include <string>
#include <thread>
#include <vector>

#include "executor/launch/hosts.h"
#include "executor/launch/rendezvous.h"

namespace stagecraft::launch {

/// A remote shell that ends leaves its program running, and it does not pass on signals. So a rank that was started
/// through one watches its standard input: while this object exists, a line TERM or INT sends that signal to this
/// process. The end of the input means that the process at the other end of the shell has exited: this process then
/// prints that, as `name` ("rank 2"), and ends with kPeerFailed.
class Tether {
 public:
  explicit Tether(std::string name);
  ~Tether();
  Tether(const Tether&) = delete;
  Tether& operator=(const Tether&) = delete;

 private:
  std::jthread waiting_;
};

/// Set to 1 in the environment of a rank whose standard input is such a line.
inline constexpr const char* kTetherVariable = "STAGECRAFT_TETHER";

/// What a start runs.
struct RankCommand {
  int ranks = 1;
  std::vector<std::string> arguments = {};         ///< program and arguments of each rank
  std::vector<interchange::HostSlots> hosts = {};  ///< where ranks run, see place_ranks; empty: all on this machine
};

/// The rank whose failure ended a start.
struct FailedRank {
  int rank = -1;      ///< -1: none failed by itself
  bool gone = false;  ///< it was killed, or the remote shell could not reach its host or lost the connection
};

/// How to start ranks.
struct SpawnOptions {
  int restarts = 0;  ///< largest number of restarts of all ranks after a failure
  /// Called before each restart with how the previous start ended; returns what to start.
  std::function<RankCommand(const FailedRank&)> again = {};
  /// Split at spaces and started with a host's name and a command line as two more arguments. Like ssh, it runs that
  /// command line there with its standard input, output and error, and ends with its status; 255 is its own failure.
  std::string remote_shell = "ssh -o BatchMode=yes";
};

/// Starts the command's ranks, copies of the program at `arguments[0]` with each rank in the environment, and waits for
/// all. When one fails, the others get `grace` to end by themselves and are then killed. Returns 0, kStopped
/// if a rank ended with that and none failed, or the first failing rank's exit status (128 + signal if killed; kHung
/// only if no rank failed itself, and kPeerFailed only if none found a hang either), after printing which rank it was.
/// Ranks that are stopped (SIGSTOP) while all others have ended are also killed after `grace`. SIGINT and SIGTERM are
/// passed on; ranks are in separate process groups, so that a terminal's Ctrl-C reaches each of them once. After a
/// failure, restarts as in the options, unless a signal was passed on. This process becomes the parent of processes
/// that ended ranks leave running (PR_SET_CHILD_SUBREAPER), such as the copier of a RankLog, and waits for them up to a
/// second. Without hosts, this process runs the rendezvous server on the loopback interface. With hosts, rank 0 runs
/// it: at MASTER_ADDR if that is set, else at the first host's name; on MASTER_PORT, else on a port of 20000..31999
/// that follows from this process's id. Ranks on other hosts get a Tether, this process's working folder and the
/// variables of handed_over. Throws std::invalid_argument for no ranks, a program that cannot be executed, and as
/// place_ranks does; and what SpawnOptions::again throws.
[[nodiscard]] int spawn(RankCommand command, std::chrono::milliseconds grace, const SpawnOptions& options = {});

}  // namespace stagecraft::launch
