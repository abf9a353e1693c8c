#pragma once

#include <sys/types.h>

#include <array>
#include <atomic>
#include <string>
#include <thread>

namespace stagecraft {

/// Sends what this process writes on standard output and standard error to FOLDER/rank-N.log, behind what is there, N
/// with as many digits as the last rank's. It is written as it comes, so nothing is lost when the process is killed.
/// Other ranks' output goes nowhere else; rank 0's goes where it went before too, through a process of its own that
/// outlives rank 0 until all is written, and ends with this object. If somebody kills that process, rank 0 goes on with
/// what it had not copied yet. A log that is there already gets a line that says that the rank starts again.
class RankLog {
 public:
  /// Makes the folder. To be made before other threads are started. Throws FormatError with path and reason.
  RankLog(const std::string& folder, int rank, int ranks);
  /// On rank 0: returns when all is written.
  ~RankLog();
  RankLog(const RankLog&) = delete;
  RankLog& operator=(const RankLog&) = delete;

  /// On rank 0: the process that copies. For tests.
  [[nodiscard]] pid_t copier() const { return copier_; }

 private:
  /// One of rank 0's two streams: the pipe's end that is read, and where the stream went before.
  struct Stream {
    int from = -1;
    int to = -1;
  };
  static void copy(std::array<Stream, 2> streams, int log);
  void watch();
  void restore() const;

  std::array<Stream, 2> streams_{};  ///< standard output and standard error
  int log_ = -1;
  pid_t copier_ = -1;
  std::atomic<bool> closing_ = false;
  std::thread watcher_;
};

/// "logs/rank-07.log" for rank 7 of 64.
[[nodiscard]] std::string rank_log_path(const std::string& folder, int rank, int ranks);

/// Makes the folder and throws as RankLog would if nothing can be written there; for the start of all ranks.
void check_log_folder(const std::string& folder);

}  // namespace stagecraft
