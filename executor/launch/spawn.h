#pragma once

#include <chrono>
#include <string>
#include <vector>

#include "executor/launch/exit_status.h"
#include "executor/launch/hosts.h"

namespace stagecraft {

/// How to start ranks, beside what they run.
struct SpawnOptions {
  int restarts = 0;                     ///< new starts of all ranks after a failure, at most
  std::vector<std::string> again = {};  ///< the command line of those
  std::vector<Host> hosts = {};         ///< where ranks run, as place_ranks gives them; none: all on this machine
  /// Started, split at spaces, with a host's name and a command line as two more arguments; runs that there with its
  /// own standard input, output and error, and ends with its status, as ssh does. 255 is its own failure.
  std::string remote_shell = "ssh -o BatchMode=yes";
};

/// Starts `ranks` copies of the program at `arguments[0]` with `arguments`, each told its rank through the environment,
/// and waits for all. When one fails the others get `grace` to end by themselves and are then killed. Returns 0,
/// kStopped if a rank ended with that and none failed, or the first failing rank's exit status (128 + signal for one
/// killed; kHung only if no rank failed of its own, and kPeerFailed only if none found a hang either), having printed
/// which rank it was. Ranks that are halted (SIGSTOP) while all others have ended are killed after `grace` too. SIGINT
/// and SIGTERM are passed on; the ranks stand in process groups of their own, so that a terminal's Ctrl-C reaches each
/// of them once. A failure is followed by new starts as the options say, unless a signal was passed on. This process
/// becomes the parent of what ended ranks leave running (PR_SET_CHILD_SUBREAPER), such as the writer of a RankLog, and
/// waits for it, up to a second. Without hosts this process keeps the meeting point, on the loopback interface. With
/// hosts rank 0 does: at MASTER_ADDR if that is set, else at the first host's name; on MASTER_PORT, else on a port of
/// 20000..31999 that follows from this process's id. Ranks on other hosts get a Tether, this process's working folder
/// and the variables that handed_over gives. Throws std::invalid_argument for no ranks, a program that cannot be
/// executed, and as place_ranks does.
[[nodiscard]] int spawn(int ranks, const std::vector<std::string>& arguments, std::chrono::milliseconds grace,
                        const SpawnOptions& options = {});

}  // namespace stagecraft
