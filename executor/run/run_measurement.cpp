#include "executor/run/run_measurement.h"

#include <ATen/ops/empty.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <limits>
#include <utility>

#include "costmodel/format/timeline_json.h"
#include "costmodel/index.h"
#include "executor/channel/control_tags.h"

namespace stagecraft::run {
namespace {

using Clock = std::chrono::steady_clock;

/// A save, and a gathering, may take 1/this of the time.
constexpr int kSaveShare = 200;
constexpr std::size_t kMostWords = 1024;  // length of the name of a check's worst tensor

/// A rank's result as bytes: the check's numbers, the length of its worst tensor's name, the name, then the measurement
/// as in its file.
struct Head {
  double values, different, cancelled, largest_error, losses, losses_different, largest_loss_error, words;
};

std::string pack(const Measurement& part, const Check& check) {
  const std::string words = check.worst.substr(0, kMostWords);
  const Head head{static_cast<double>(check.values),
                  static_cast<double>(check.different),
                  static_cast<double>(check.cancelled),
                  check.largest_error,
                  static_cast<double>(check.losses),
                  static_cast<double>(check.losses_different),
                  check.largest_loss_error,
                  static_cast<double>(words.size())};
  std::string out(sizeof head, '\0');
  std::memcpy(out.data(), &head, sizeof head);
  return out + words + format::measurement_json(part);
}

/// Adds the check in rank `rank`'s result to `check` and returns its measurement.
Measurement unpack(const std::string& bytes, int rank, Check& check) {
  const auto refuse = [rank](const std::string& what) {
    throw meeting::PeerError("rank " + std::to_string(rank) + " sent a result " + what);
  };
  Head head{};
  if (bytes.size() < sizeof head) refuse("that is too short");
  std::memcpy(&head, bytes.data(), sizeof head);
  constexpr double kMostCount = 1e15;
  for (const double count : {head.values, head.different, head.cancelled, head.losses, head.losses_different}) {
    if (!(count >= 0 && count <= kMostCount)) refuse("with a check of " + std::to_string(count) + " values");
  }
  if (!(head.words >= 0 && head.words <= static_cast<double>(std::min(kMostWords, bytes.size() - sizeof head))))
    refuse("whose text is too long");
  const auto words = static_cast<std::size_t>(head.words);
  Check part;
  part.values = static_cast<std::int64_t>(head.values);
  part.different = static_cast<std::int64_t>(head.different);
  part.cancelled = static_cast<std::int64_t>(head.cancelled);
  part.largest_error = head.largest_error;
  part.worst = bytes.substr(sizeof head, words);
  part.losses = static_cast<std::int64_t>(head.losses);
  part.losses_different = static_cast<std::int64_t>(head.losses_different);
  part.largest_loss_error = head.largest_loss_error;
  add(check, part);
  return format::parse_measurement(bytes.substr(sizeof head + words), "result of rank " + std::to_string(rank));
}

void cover(StepTime& time, Seconds start, Seconds end) {
  time.start = std::min(time.start, start);
  time.end = std::max(time.end, end);
}

/// Entries [first, last) of `times`, except steps without measurements.
std::vector<StepTime> known(const std::vector<StepTime>& times, std::size_t first, std::size_t last) {
  std::vector<StepTime> out;
  for (std::size_t i = first; i < last; ++i) {
    if (times[i].start <= times[i].end) out.push_back(times[i]);
  }
  return out;
}

}  // namespace

RunMeasurement::RunMeasurement(const BoundPlan& bound, const std::vector<Action>& actions, int rank,
                               channel::Channel& channel, std::int64_t first_step, SaveMeasurement save,
                               std::chrono::milliseconds save_every)
    : plan_(bound),
      rank_(rank),
      channel_(channel),
      first_step_(first_step),
      save_(std::move(save)),
      save_every_(save_every),
      order_(bound, actions, rank, to_int(first_step)),
      keeper_(to_int(first_step)),
      others_(to_index(channel.ranks())) {
  const Plan& plan = bound.plan();
  header_.model = plan.model;
  header_.schedule = plan.schedule;
  header_.microbatches = plan.microbatches;
  header_.microbatch_samples = plan.microbatch_samples;
  header_.timeline.ranks = channel.ranks();
  for (const RankRole& role : bound.ranks()) header_.timeline.stage_of_rank.push_back(role.stages.front());
}

StepTime& RunMeasurement::time_at(std::size_t place) {
  while (times_.size() <= place) {
    times_.push_back({to_int(first_step_ + static_cast<std::int64_t>(times_.size())),
                      Seconds(std::numeric_limits<double>::max()), Seconds(std::numeric_limits<double>::lowest())});
  }
  return times_[place];
}

void RunMeasurement::add(const std::vector<Span>& spans) {
  for (const Span& span : spans) {
    if (const auto wrong = order_.next(span)) throw meeting::PeerError("the run did not follow its plan: " + *wrong);
    keeper_.add(span);
    const auto place = to_index(span.step - first_step_);
    cover(time_at(place), span.start, span.end);
  }
}

void RunMeasurement::add_loss(double loss) { header_.losses.push_back(loss); }

Measurement RunMeasurement::of_rank(bool all) const {
  Measurement out = header_;
  out.losses.clear();
  out.kept = keeper_.kept();
  // The newest step may be incomplete.
  out.timeline.steps = known(times_, sent_, all || times_.empty() ? times_.size() : times_.size() - 1);
  out.timeline.spans = keeper_.spans();
  return out;
}

void RunMeasurement::take(const Measurement& part) {
  for (const StepTime& step : part.timeline.steps) {
    const std::int64_t place = step.step - first_step_;
    if (place < 0 || place > std::numeric_limits<int>::max()) continue;
    cover(time_at(to_index(place)), step.start, step.end);
  }
  memory_.insert(memory_.end(), part.timeline.memory.begin(), part.timeline.memory.end());
}

Seconds RunMeasurement::worked(Seconds time) const {
  Seconds out = time;
  for (const Pause& pause : pauses_) {
    if (time <= pause.begin) break;
    out -= std::min(time, pause.end) - pause.begin;
  }
  return out;
}

Measurement RunMeasurement::whole() const {
  Measurement out = header_;
  out.kept = keeper_.kept();
  Timeline& timeline = out.timeline;
  timeline.steps = known(times_, 0, times_.size());
  timeline.spans = keeper_.spans();
  for (const std::vector<Span>& spans : others_)
    timeline.spans.insert(timeline.spans.end(), spans.begin(), spans.end());
  timeline.memory = memory_;
  std::ranges::sort(timeline.memory, {}, &RankMemory::rank);
  if (timeline.steps.empty()) return out;
  for (StepTime& step : timeline.steps) step = {step.step, worked(step.start), worked(step.end)};
  const Seconds origin = timeline.steps.front().start;
  for (Span& span : timeline.spans) {
    span.start = worked(span.start) - origin;
    span.end = worked(span.end) - origin;
  }
  // Step k begins where step k-1 ended, so that the steps add up to the run.
  Seconds end;
  for (StepTime& step : timeline.steps) {
    step.start = end;
    end = step.end = std::max(end, step.end - origin);
  }
  return out;
}

std::int64_t RunMeasurement::most_bytes() const {
  constexpr std::int64_t kSpanBytes = 512;
  constexpr std::int64_t kStepBytes = 256;
  constexpr std::int64_t kOtherBytes = std::int64_t{1} << 20;
  std::size_t actions = 0;
  for (const auto& list : plan_.action_lists()) actions = std::max(actions, list.size());
  // A wait for a value that stays on the rank is a span without an action; updates end each step.
  const std::size_t waits = 2 * to_index(plan_.plan().microbatches) * plan_.plan().boundaries.size();
  const auto of_step = static_cast<std::int64_t>(actions + waits + plan_.plan().stages.size());
  return kOtherBytes + SpanKeeper::kMost * kSpanBytes * of_step +
         kStepBytes * (static_cast<std::int64_t>(times_.size()) + SpanKeeper::kMost);
}

void RunMeasurement::send(const Measurement& part, const Check& check) {
  const std::string bytes = pack(part, check);
  at::Tensor length = at::empty({1}, at::kLong);
  *length.data_ptr<std::int64_t>() = static_cast<std::int64_t>(bytes.size());
  at::Tensor body = at::empty({static_cast<std::int64_t>(bytes.size())}, at::kByte);
  std::memcpy(body.data_ptr(), bytes.data(), bytes.size());
  const auto first = channel_.send(length, 0, channel::kLengthTag);
  const auto second = channel_.send(body, 0, channel::kResultTag);
  first->wait();
  second->wait();
}

void RunMeasurement::receive(Check& check) {
  for (int other = 1; other < channel_.ranks(); ++other) {
    const at::Tensor length = channel_.receive({{1}, at::kLong}, other, channel::kLengthTag)->wait();
    const std::int64_t count = *length.const_data_ptr<std::int64_t>();
    if (const std::int64_t most = most_bytes(); count < 0 || count > most) {
      throw meeting::PeerError("rank " + std::to_string(other) + " announces a result of " + std::to_string(count) +
                               " bytes, the plan allows at most " + std::to_string(most));
    }
    const at::Tensor body = channel_.receive({{count}, at::kByte}, other, channel::kResultTag)->wait();
    Measurement part =
        unpack(std::string(static_cast<const char*>(body.const_data_ptr()), to_index(count)), other, check);
    take(part);
    others_[to_index(other)] = std::move(part.timeline.spans);
  }
}

void RunMeasurement::move(bool all, Check& check) {
  channel_.activity().begin({.action = "gathering of results"});
  if (rank_ == 0) return receive(check);
  Measurement part = of_rank(all);
  part.timeline.memory = memory_;
  send(part, check);
  if (!times_.empty()) sent_ = times_.size() - 1;
}

void RunMeasurement::take_answer() {
  if (!answer_) return;
  const at::Tensor arrived = answer_->wait();
  answer_.reset();
  const std::int64_t steps = *arrived.const_data_ptr<std::int64_t>();
  if (steps < 1) throw meeting::PeerError("rank 0 wants results after " + std::to_string(steps) + " steps");
  next_move_ = moved_ + steps;
}

void RunMeasurement::answer(std::int64_t steps) {
  finish_answers();
  for (int other = 1; other < channel_.ranks(); ++other) {
    at::Tensor answer = at::empty({1}, at::kLong);
    *answer.data_ptr<std::int64_t>() = steps;
    answers_.push_back(channel_.send(answer, other, channel::kNextResultTag));
  }
}

void RunMeasurement::finish_answers() {
  for (const auto& answer : answers_) answer->wait();
  answers_.clear();
}

std::int64_t RunMeasurement::steps_until_next(std::int64_t done, Clock::time_point begin) const {
  const std::int64_t least = std::max<std::int64_t>(1, done / 8);
  if (save_every_.count() == 0) return least;
  using Time = std::chrono::duration<double>;
  Time pause = save_every_;
  // The first gathering waits for ranks whose first step took longer, so it says little.
  if (moved_ > 0) pause = std::max<Time>(pause, kSaveShare * (Clock::now() - begin));
  const Time step = std::max<Time>(begin - moved_at_, std::chrono::nanoseconds(1)) / static_cast<double>(done - moved_);
  constexpr double kMost = 1e9;
  return std::max(least, static_cast<std::int64_t>(std::min(kMost, pause / step)));
}

void RunMeasurement::after_step(std::int64_t step) {
  take_answer();
  const std::int64_t done = step + 1 - first_step_;
  if (!save_ || done < next_move_) return;
  const Clock::time_point begin = Clock::now();
  Check none;
  move(false, none);
  if (rank_ == 0) {
    const std::int64_t steps = steps_until_next(done, begin);
    next_move_ = done + steps;
    answer(steps);
    save_if_due();
  } else {
    answer_ = channel_.receive({{1}, at::kLong}, 0, channel::kNextResultTag);
  }
  moved_ = done;
  moved_at_ = Clock::now();
}

void RunMeasurement::save_if_due() {
  const Clock::time_point begin = Clock::now();
  if (!save_ || begin < next_save_) return;
  Measurement sofar = whole();
  sofar.ended = false;
  save_(sofar);
  const Clock::time_point end = Clock::now();
  if (save_every_.count() > 0) next_save_ = end + std::max<Clock::duration>(save_every_, kSaveShare * (end - begin));
}

Measurement RunMeasurement::finish(std::int64_t steps, RankMemory memory, Check& check) {
  const bool synchronous = !plan_.asynchronous();
  if (const auto wrong = order_.end(synchronous ? to_int(steps) : steps > 0 ? 1 : 0))
    throw meeting::PeerError("the run did not follow its plan: " + *wrong);
  memory_.push_back(std::move(memory));
  take_answer();
  move(true, check);
  finish_answers();
  if (rank_ == 0) return whole();
  Measurement out = of_rank(true);
  out.timeline.memory = memory_;
  return out;
}

}  // namespace stagecraft::run
