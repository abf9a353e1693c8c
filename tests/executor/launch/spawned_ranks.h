#pragma once

#include <gtest/gtest.h>

#include <chrono>
#include <string>
#include <utility>
#include <vector>

#include "executor/launch/spawn.h"
#include "executor/meeting/meeting_store.h"
#include "tests/support/places.h"

// Runs real processes.

namespace stagecraft {

/// How a run ended.
struct EndedRun {
  int status = 0;
  std::string text;
};

/// Runs rank_program, whose deadline for a silent rank is 2 s.
inline EndedRun run_ranks(int ranks, std::vector<std::string> arguments,
                          std::chrono::milliseconds grace = std::chrono::milliseconds(4000)) {
  arguments.insert(arguments.begin(), program_folder() + "/rank_program");
  ::testing::internal::CaptureStderr();  // includes the children's output
  EndedRun outcome;
  outcome.status = launch::spawn({ranks, arguments, {}}, grace);
  outcome.text = ::testing::internal::GetCapturedStderr();
  return outcome;
}

/// How often `part` occurs in `text`.
inline int count(const std::string& text, const std::string& part) {
  int found = 0;
  for (std::size_t at = text.find(part); at != std::string::npos; at = text.find(part, at + 1)) ++found;
  return found;
}

inline std::string free_port() { return std::to_string(meeting::StoreServer().port()); }

}  // namespace stagecraft
