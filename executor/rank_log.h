#pragma once

#include <sys/types.h>

#include <string>

namespace stagecraft {

/// Sends what this process writes on standard output and standard error to FOLDER/rank-N.log, behind what is there, N
/// with as many digits as the last rank's. It is written as it comes, so nothing is lost when the process is killed.
/// Other ranks' stays there for good; rank 0's goes where it went before too, through a process of its own that
/// outlives rank 0 until all is written, and ends with this object. A log that is there already gets a line that says
/// that the rank starts again.
class RankLog {
 public:
  /// Makes the folder. To be made before other threads are started. Throws FormatError with path and reason.
  RankLog(const std::string& folder, int rank, int ranks);
  /// On rank 0: returns when all is written.
  ~RankLog();
  RankLog(const RankLog&) = delete;
  RankLog& operator=(const RankLog&) = delete;

 private:
  pid_t copier_ = -1;
  int output_ = -1;  ///< where rank 0's went before
  int error_ = -1;
};

/// "logs/rank-07.log" for rank 7 of 64.
[[nodiscard]] std::string rank_log_path(const std::string& folder, int rank, int ranks);

/// Makes the folder and throws as RankLog would if nothing can be written there; for the start of all ranks.
void check_log_folder(const std::string& folder);

}  // namespace stagecraft
