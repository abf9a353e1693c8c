#include "executor/run/worker/nonfinite_guard.h"

namespace stagecraft::run {

void NonfiniteGuard::set(stage::OnNonfinite what, std::function<void(const std::string&)> tell) {
  what_ = what;
  tell_ = std::move(tell);
}

void NonfiniteGuard::found(std::int64_t step, const std::string& what) {
  const std::string text = "step " + std::to_string(step + 1) + ": " + what + " is not finite";
  if (what_ == stage::OnNonfinite::Stop) throw stage::NonfiniteError(text);
  if (step == last_) return;
  last_ = step;
  if (what_ == stage::OnNonfinite::Warn) ++steps_;
  if (tell_) tell_("rank " + std::to_string(rank_) + ", " + text);
}

}  // namespace stagecraft::run
