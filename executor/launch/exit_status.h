#pragma once

#include "executor/meeting/peer_error.h"

namespace stagecraft::launch {

/// Exit status of a rank that ended because another rank failed.
inline constexpr int kPeerFailed = 3;
/// Exit status of a rank that timed out: a deadline passed, or a rank fell silent.
inline constexpr int kHung = 4;
/// Exit status of a rank that was asked to stop, and did so with a checkpoint. sysexits.h calls 75 EX_TEMPFAIL: start
/// again later.
inline constexpr int kStopped = 75;

/// The exit status for an error's cause: 1, kHung or kPeerFailed.
[[nodiscard]] int exit_status(const meeting::PeerError& error);

}  // namespace stagecraft::launch
