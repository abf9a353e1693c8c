#pragma once

#include <condition_variable>
#include <cstdint>
#include <deque>
#include <exception>
#include <functional>
#include <mutex>
#include <thread>
#include <vector>

#include <ATen/core/Tensor.h>
#include <c10/core/Device.h>

namespace stagecraft::data {

/// `batch` in memory from which copies to `device` can run asynchronously: for a GPU, dense and pinned; for a CPU, the
/// same tensors. It may be released right after such a copy was enqueued: LibTorch gives pinned memory to others only
/// when the copies that read it are done.
[[nodiscard]] std::vector<at::Tensor> ready_to_upload(std::vector<at::Tensor> batch, c10::Device device);

/// Loads batches ahead on a separate thread, in the order in which they are needed.
class Prefetch {
 public:
  /// `load(i)` gives batch i = 0, 1, ...; it runs on the thread, at most `ahead` batches before next().
  Prefetch(std::function<std::vector<at::Tensor>(std::int64_t)> load, std::size_t ahead);
  ~Prefetch();
  Prefetch(const Prefetch&) = delete;
  Prefetch& operator=(const Prefetch&) = delete;

  /// The next batch. Rethrows an error of loading it.
  [[nodiscard]] std::vector<at::Tensor> take();

 private:
  void run();
  std::function<std::vector<at::Tensor>(std::int64_t)> load_;
  std::size_t ahead_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<std::vector<at::Tensor>> ready_;
  std::exception_ptr failure_;
  bool stop_ = false;
  std::thread thread_;
};

}  // namespace stagecraft::data
