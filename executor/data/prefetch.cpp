#include "executor/data/prefetch.h"

#include <utility>

namespace stagecraft::data {

std::vector<at::Tensor> ready_to_upload(std::vector<at::Tensor> batch, c10::Device device) {
  if (device.is_cpu()) return batch;
  for (at::Tensor& tensor : batch) {
    // A copy of another layout would go through a temporary tensor that is not pinned.
    if (!tensor.is_non_overlapping_and_dense()) tensor = tensor.contiguous();
    tensor = tensor.pin_memory();
  }
  return batch;
}

Prefetch::Prefetch(std::function<std::vector<at::Tensor>(std::int64_t)> load, std::size_t ahead)
    : load_(std::move(load)), ahead_(ahead), thread_([this] { run(); }) {}

Prefetch::~Prefetch() {
  {
    const std::lock_guard lock(mutex_);
    stop_ = true;
  }
  changed_.notify_all();
  thread_.join();
}

std::vector<at::Tensor> Prefetch::take() {
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [&] { return !ready_.empty() || failure_; });
  if (ready_.empty()) std::rethrow_exception(failure_);
  std::vector<at::Tensor> out = std::move(ready_.front());
  ready_.pop_front();
  lock.unlock();
  changed_.notify_all();
  return out;
}

void Prefetch::run() {
  for (std::int64_t i = 0;; ++i) {
    {
      std::unique_lock lock(mutex_);
      changed_.wait(lock, [&] { return stop_ || ready_.size() < ahead_; });
      if (stop_) return;
    }
    try {
      std::vector<at::Tensor> batch = load_(i);
      const std::lock_guard lock(mutex_);
      ready_.push_back(std::move(batch));
    } catch (...) {
      const std::lock_guard lock(mutex_);
      failure_ = std::current_exception();
      stop_ = true;
    }
    changed_.notify_all();
  }
}

}  // namespace stagecraft::data
