#pragma once

#include <chrono>
#include <functional>
#include <string>

#include "executor/channel/channel.h"

namespace stagecraft {

/// Runs `body` once per rank, each in a thread of this process with its channel of the kind `name`. All end, then the
/// channels go. Rethrows the first exception, having aborted the others.
void run_on_ranks(const std::string& name, int ranks, std::chrono::milliseconds deadline,
                  const std::function<void(Channel&)>& body);

}  // namespace stagecraft
