#pragma once

#include <cstdint>
#include <string>

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
  std::string listen;        ///< the only address at which rank 0 listens; empty: the one that `host` resolves to
  std::string secret;        ///< who does not know it is not let in
  std::string run_id = "0";  ///< keeps restarts and neighbouring runs apart
  std::string launcher;      ///< "torchrun", "slurm", "open mpi", "stagecraft"; for messages
};

}  // namespace stagecraft
