#include "partitioner/search_progress.h"

#include <algorithm>

namespace stagecraft::partitioner {

SearchState SearchProgress::state() const {
  const std::lock_guard lock(mutex_);
  SearchState out = state_;
  if (!out.search.empty()) out.passed = Seconds(std::chrono::duration<double>(now_() - begin_).count());
  out.predicted = predicted_.load(std::memory_order_relaxed);
  out.simulated = simulated_.load(std::memory_order_relaxed);
  return out;
}

void SearchProgress::found(Seconds step) {
  change([&](SearchState& state) { state.best = std::min(state.best.value_or(step), step); });
}

void SearchProgress::predicted() {
  predicted_.fetch_add(1, std::memory_order_relaxed);
  simulated(0);
}

ToldSearch::ToldSearch(SearchProgress* progress, const std::string& name) : counted_(progress) {
  if (progress == nullptr) return;
  progress->change([&](SearchState& state) {
    if (progress->searches_++ > 0) return;
    progress_ = progress;
    progress->begin_ = progress->now_();
    state = {.part = state.part, .search = name, .passed = {}};
    progress->predicted_ = 0;
  });
}

ToldSearch::~ToldSearch() {
  if (counted_ != nullptr) counted_->change([&](SearchState&) { --counted_->searches_; });
}

void ToldSearch::ends_after(Seconds limit) const {
  if (progress_ != nullptr) progress_->change([&](SearchState& state) { state.limit = limit; });
}

void ToldSearch::proved(Seconds lower_bound) const {
  if (progress_ == nullptr) return;
  progress_->change(
      [&](SearchState& state) { state.lower_bound = std::max(state.lower_bound.value_or(lower_bound), lower_bound); });
}

void ToldSearch::tried(std::size_t done, std::size_t all) const {
  if (progress_ == nullptr) return;
  progress_->change([&](SearchState& state) {
    state.done = done;
    state.all = all;
  });
}

ToldPart::ToldPart(SearchProgress* progress, const std::string& name) : progress_(progress) {
  if (progress_ == nullptr) return;
  progress_->change([&](SearchState& state) {
    before_ = state.part;
    state.part += (before_.empty() ? "" : ", ") + name;
  });
}

ToldPart::~ToldPart() {
  if (progress_ != nullptr) progress_->change([&](SearchState& state) { state.part = before_; });
}

}  // namespace stagecraft::partitioner
