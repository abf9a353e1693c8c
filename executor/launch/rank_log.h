#pragma once

#include <sys/types.h>

#include <array>
#include <atomic>
#include <string>
#include <thread>

namespace stagecraft::launch {

/// Appends the standard output and standard error of this process to FOLDER/rank-N.log, N padded to the last rank's
/// digits. Output is written immediately, so nothing is lost if the process is killed. Rank 0's output also goes where
/// it went before, through a separate process that outlives rank 0 until everything is written, and otherwise ends with
/// this object. If that process is killed, rank 0 copies the rest itself. An existing log gets a line saying that the
/// rank restarts.
class RankLog {
 public:
  /// Creates the folder. Construct before other threads are started. Throws FormatError with path and reason.
  RankLog(const std::string& folder, int rank, int ranks);
  /// On rank 0: returns when everything is written.
  ~RankLog();
  RankLog(const RankLog&) = delete;
  RankLog& operator=(const RankLog&) = delete;

  /// On rank 0: the process that copies. For tests.
  [[nodiscard]] pid_t copier() const { return copier_; }

 private:
  /// One of rank 0's two streams: the read end of the pipe, and where the stream went before.
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

/// Creates the folder and throws as RankLog does if it is not writable; for the process that starts all ranks.
void check_log_folder(const std::string& folder);

}  // namespace stagecraft::launch
