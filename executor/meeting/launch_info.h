#pragma once

#include <cstdint>
#include <string>

namespace stagecraft::meeting {

/// This process's place in a run, and where the ranks meet.
struct LaunchInfo {
  int rank = 0;
  int ranks = 1;
  int local_rank = 0;
  std::string host = "127.0.0.1";  ///< of the rendezvous server
  std::uint16_t port = 0;
  bool served = false;       ///< the spawning parent runs the rendezvous server; else rank 0 does
  bool agent = false;        ///< host and port are those of torchrun's agent, where rank 0 publishes the server's
  std::string listen;        ///< the only address on which rank 0 listens; empty: the one to which `host` resolves
  std::string secret;        ///< required to join
  std::string run_id = "0";  ///< separates restarts and concurrent runs
  std::string launcher;      ///< "torchrun", "slurm", "open mpi", "stagecraft"; for messages
};

}  // namespace stagecraft::meeting
