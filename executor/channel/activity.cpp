#include "executor/channel/activity.h"

#include <fmt/format.h>

#include "executor/channel/control_tags.h"

namespace stagecraft::channel {
namespace {

/// The purpose of a message under `tag`.
std::string purpose(int tag) {
  switch (tag) {
    case kLossTag:
      return " about losses";
    case kLengthTag:
    case kResultTag:
    case kNextResultTag:
      return " about results";
    case kPlateauTag:
      return " about a validation's loss";
    case kNormTag:
    case kBlocksTag:
      return " about gradient norms";
    case kStopTag:
      return " about stopping";
    case kReportTag:
    case kFirstStepTag:
      return " about a checkpoint";
    case kProofTag:
      return " for its proof of identity";
    case kTimesTag:
      return " about processor time";
    case kBarrierTag:
      return " at a barrier";
    default:
      if (tag >= kBucketsTag) return " to sum replicas' gradients";
      return tag >= kTiesTag ? " to sum tied gradients" : fmt::format(" under tag {}", tag);
  }
}

}  // namespace

template <typename Store>
void Activity::write(const Store& store) noexcept {
  const std::uint32_t before = sequence_.load(std::memory_order_relaxed);
  sequence_.store(before + 1, std::memory_order_relaxed);
  std::atomic_thread_fence(std::memory_order_release);
  store();
  sequence_.store(before + 2, std::memory_order_release);
}

void Activity::begin(const Doing& doing) noexcept {
  const auto now = Clock::now().time_since_epoch().count();
  write([&] {
    action_.store(doing.action, std::memory_order_relaxed);
    stage_.store(doing.stage, std::memory_order_relaxed);
    microbatch_.store(doing.microbatch, std::memory_order_relaxed);
    step_.store(doing.step, std::memory_order_relaxed);
    peer_.store(-1, std::memory_order_relaxed);
    since_.store(now, std::memory_order_relaxed);
  });
}

void Activity::wait_for(int peer, int tag) noexcept {
  const auto now = Clock::now().time_since_epoch().count();
  write([&] {
    peer_.store(peer, std::memory_order_relaxed);
    tag_.store(tag, std::memory_order_relaxed);
    since_.store(now, std::memory_order_relaxed);
  });
}

void Activity::go_on() noexcept {
  const auto now = Clock::now().time_since_epoch().count();
  write([&] {
    peer_.store(-1, std::memory_order_relaxed);
    since_.store(now, std::memory_order_relaxed);
  });
}

std::string Activity::text(Clock::time_point now) const {
  Doing doing;
  int peer = -1;
  int tag = -1;
  Clock::rep since = 0;
  std::uint32_t before = 0;
  do {
    before = sequence_.load(std::memory_order_acquire);
    doing = {action_.load(std::memory_order_relaxed), stage_.load(std::memory_order_relaxed),
             microbatch_.load(std::memory_order_relaxed), step_.load(std::memory_order_relaxed)};
    peer = peer_.load(std::memory_order_relaxed);
    tag = tag_.load(std::memory_order_relaxed);
    since = since_.load(std::memory_order_relaxed);
    std::atomic_thread_fence(std::memory_order_acquire);
  } while (before % 2 != 0 || before != sequence_.load(std::memory_order_relaxed));
  if (before == 0) return "";

  std::string out = doing.action;
  if (doing.microbatch >= 0) out += fmt::format(" of microbatch {}", doing.microbatch);
  if (doing.stage >= 0) out += fmt::format(" of stage {}", doing.stage);
  if (doing.step >= 0) out += fmt::format(" in step {}", doing.step + 1);
  const double seconds = std::chrono::duration<double>(now.time_since_epoch() - Clock::duration(since)).count();
  if (peer < 0) return out + (out.empty() ? "" : fmt::format(" for {:.1f} s", seconds));
  return out +
         fmt::format("{}waiting for rank {}{} for {:.1f} s", out.empty() ? "" : ", ", peer, purpose(tag), seconds);
}

}  // namespace stagecraft::channel
