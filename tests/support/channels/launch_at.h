#pragma once

#include <string>

#include "executor/meeting/launch_info.h"
#include "executor/meeting/meeting_store.h"

namespace stagecraft::testing {

/// The place of `rank` in a run of `ranks` on this machine that meets at `server`.
inline meeting::LaunchInfo launch_at(const meeting::StoreServer& server, int rank, int ranks,
                                     const std::string& secret = "") {
  meeting::LaunchInfo launch;
  launch.rank = launch.local_rank = rank;
  launch.ranks = ranks;
  launch.port = server.port();
  launch.served = true;
  launch.secret = secret;
  return launch;
}

}  // namespace stagecraft::testing
