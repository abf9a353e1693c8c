#include "executor/run.h"

#include <ATen/Parallel.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/from_blob.h>
#include <ATen/ops/tensor.h>
#include <ATen/ops/zeros_like.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstring>
#include <exception>
#include <mutex>
#include <thread>

#include "costmodel/format/json.h"
#include "costmodel/timeline_order.h"
#include "costmodel/verify.h"
#include "executor/control_tags.h"
#include "executor/device.h"
#include "executor/memory_tracker.h"
#include "executor/ranges.h"
#include "executor/reference.h"
#include "executor/stage_worker.h"
#include "executor/training_record.h"

namespace stagecraft {
namespace {

/// Steps during which memory is counted: the first makes the optimizer's state, the second holds everything. They are
/// the warm-up steps that a comparison leaves out, so counting disturbs no time that counts.
constexpr std::int64_t kMemorySteps = 2;

std::vector<int> loss_ranks(const Plan& plan, const Model& model) {
  const int last = static_cast<int>(model.layers.size()) - 1;
  const auto layers = layers_of_stages(plan, model);
  std::vector<int> out;
  for (std::size_t s = 0; s < layers.size(); ++s) {
    if (std::find(layers[s].begin(), layers[s].end(), last) == layers[s].end()) continue;
    const std::vector<int> replicas = replica_ranks(plan, static_cast<int>(s));
    out.insert(out.end(), replicas.begin(), replicas.end());
  }
  return out;
}

/// Microbatch losses of a step, from the ranks that compute them to rank 0.
class LossGathering {
 public:
  LossGathering(const Plan& plan, const Model& model, int rank, Channel& channel)
      : plan_(plan), sources_(loss_ranks(plan, model)), rank_(rank), channel_(channel) {}

  void send(const MicrobatchLosses& losses) {
    std::vector<double> own;
    for (const auto& [microbatch, loss] : losses) own.push_back(loss);
    const auto it = std::find(sources_.begin(), sources_.end(), rank_);
    if (it == sources_.end() || own.empty()) return;
    if (rank_ == 0) {
      own_.push_back(own);
      return;
    }
    at::Tensor values = at::empty({static_cast<std::int64_t>(own.size())}, at::kDouble);
    std::copy(own.begin(), own.end(), values.data_ptr<double>());
    sending_.push_back(channel_.send(values, 0, kLossTag));
    if (sending_.size() > 4) {
      sending_.front()->wait();
      sending_.erase(sending_.begin());
    }
  }
  /// On rank 0: the mean of the next step's losses, added up by microbatch; `first` is the number of its first one.
  double receive(int first) {
    std::vector<double> losses(static_cast<std::size_t>(plan_.microbatches));
    for (std::size_t replica = 0; replica < sources_.size(); ++replica) {
      std::vector<int> own;
      for (int m = 0; m < plan_.microbatches; ++m) {
        if ((first + m) % static_cast<int>(sources_.size()) == static_cast<int>(replica)) own.push_back(m);
      }
      if (own.empty()) continue;
      std::vector<double> values;
      if (sources_[replica] == 0) {
        values = own_.front();
        own_.erase(own_.begin());
      } else {
        const at::Tensor arrived =
            channel_.receive({{static_cast<std::int64_t>(own.size())}, at::kDouble}, sources_[replica], kLossTag)
                ->wait();
        values.assign(arrived.const_data_ptr<double>(), arrived.const_data_ptr<double>() + own.size());
      }
      for (std::size_t i = 0; i < own.size(); ++i) losses[static_cast<std::size_t>(own[i])] = values[i];
    }
    double sum = 0;
    for (const double loss : losses) sum += loss;
    return sum / plan_.microbatches;
  }
  void finish() {
    for (const auto& sending : sending_) sending->wait();
    sending_.clear();
  }

 private:
  const Plan& plan_;
  std::vector<int> sources_;
  int rank_;
  Channel& channel_;
  std::vector<std::vector<double>> own_;
  std::vector<std::unique_ptr<Sending>> sending_;
};

void compare_gradients(StageWorker& worker, const Reference& reference, Check& check) {
  const at::NoGradGuard no_graph;
  for (const Parameter& parameter : worker.parameters()) {
    at::Tensor expected = reference.gradient(parameter.layer, parameter.name);
    at::Tensor found = parameter.value.grad();
    if (!expected.defined() && !found.defined()) continue;
    if (!expected.defined()) expected = at::zeros_like(found);
    if (!found.defined()) found = at::zeros_like(expected);
    compare_values(found, expected, check);
  }
}

void compare_losses(const MicrobatchLosses& losses, const Reference& reference, Check& check) {
  for (const auto& [microbatch, found] : losses) {
    const double expected = reference.losses()[static_cast<std::size_t>(microbatch)];
    ++check.losses;
    if (found != expected) ++check.losses_different;
    const double error = std::abs(found - expected) / std::max(std::abs(expected), 1e-30);
    check.largest_loss_error = std::isnan(error) ? error : std::max(check.largest_loss_error, error);
  }
}

constexpr std::size_t kCheckValues = 6;

/// A rank's part as bytes: the check's numbers, then the measurement as its file would be.
std::string pack(const Measurement& measurement, const Check& check) {
  const double numbers[kCheckValues] = {
      static_cast<double>(check.values), static_cast<double>(check.different),        check.largest_error,
      static_cast<double>(check.losses), static_cast<double>(check.losses_different), check.largest_loss_error};
  std::string out(sizeof numbers, '\0');
  std::memcpy(out.data(), numbers, sizeof numbers);
  return out + measurement_json(measurement);
}

void add(Check& sum, const Check& part) {
  sum.values += part.values;
  sum.different += part.different;
  sum.losses += part.losses;
  sum.losses_different += part.losses_different;
  const auto larger = [](double a, double b) { return std::isnan(a) || std::isnan(b) ? std::nan("") : std::max(a, b); };
  sum.largest_error = larger(sum.largest_error, part.largest_error);
  sum.largest_loss_error = larger(sum.largest_loss_error, part.largest_loss_error);
}

/// Unpacks rank `rank`'s part into the whole.
void merge(const std::string& bytes, int rank, Measurement& whole, Check& check) {
  double numbers[kCheckValues];
  if (bytes.size() < sizeof numbers)
    throw ChannelError("rank " + std::to_string(rank) + " sent a result that is too short");
  std::memcpy(numbers, bytes.data(), sizeof numbers);
  constexpr double kMostCount = 1e15;
  for (const double count : {numbers[0], numbers[1], numbers[3], numbers[4]}) {
    if (!(count >= 0 && count <= kMostCount))
      throw ChannelError("rank " + std::to_string(rank) + " sent a check of " + std::to_string(count) + " values");
  }
  add(check, {static_cast<std::int64_t>(numbers[0]), static_cast<std::int64_t>(numbers[1]), numbers[2],
              static_cast<std::int64_t>(numbers[3]), static_cast<std::int64_t>(numbers[4]), numbers[5]});
  const Measurement part = parse_measurement(bytes.substr(sizeof numbers), "result of rank " + std::to_string(rank));
  whole.timeline.spans.insert(whole.timeline.spans.end(), part.timeline.spans.begin(), part.timeline.spans.end());
  whole.timeline.memory.insert(whole.timeline.memory.end(), part.timeline.memory.begin(), part.timeline.memory.end());
}

/// Step k ends with its last span on any rank and begins where step k-1 ended (the first with its first span), so that
/// the steps add up to the run.
void derive_steps(Timeline& timeline) {
  std::map<int, StepTime> steps;
  for (const Span& span : timeline.spans) {
    auto [it, fresh] = steps.emplace(span.step, StepTime{span.step, span.start, span.end});
    it->second.start = std::min(it->second.start, span.start);
    it->second.end = std::max(it->second.end, span.end);
  }
  timeline.steps.clear();
  for (auto& [number, step] : steps) {
    if (!timeline.steps.empty()) step.start = timeline.steps.back().end;
    timeline.steps.push_back(step);
  }
}

/// More bytes than any rank's result of `steps` steps can have; bounds what a broken peer can make rank 0 allocate.
std::int64_t most_result_bytes(const Plan& plan, std::int64_t steps) {
  constexpr std::int64_t kSpanBytes = 512, kOtherBytes = std::int64_t{1} << 20;
  std::size_t actions = 0;
  for (const auto& list : action_lists(plan)) actions = std::max(actions, list.size());
  // A wait for what stays on the rank is a span that no action stands for; updates end each step.
  const std::size_t waits = 2 * static_cast<std::size_t>(plan.microbatches) * plan.boundaries.size();
  return kOtherBytes + steps * kSpanBytes * static_cast<std::int64_t>(actions + waits + plan.stages.size());
}

/// Moves every rank's part to rank 0.
void gather(RunResult& result, const Plan& plan, int rank, Channel& channel) {
  Check check = result.check.value_or(Check{});
  if (rank != 0) {
    const std::string bytes = pack(result.measurement, check);
    at::Tensor length = at::empty({1}, at::kLong);
    *length.data_ptr<std::int64_t>() = static_cast<std::int64_t>(bytes.size());
    at::Tensor body = at::empty({static_cast<std::int64_t>(bytes.size())}, at::kByte);
    std::memcpy(body.data_ptr(), bytes.data(), bytes.size());
    const auto first = channel.send(length, 0, kLengthTag);
    const auto second = channel.send(body, 0, kResultTag);
    first->wait();
    second->wait();
    return;
  }
  for (int other = 1; other < channel.ranks(); ++other) {
    const at::Tensor length = channel.receive({{1}, at::kLong}, other, kLengthTag)->wait();
    const std::int64_t count = *length.const_data_ptr<std::int64_t>();
    const std::int64_t most = most_result_bytes(plan, result.steps_done - result.first_step);
    if (count < 0 || count > most) {
      throw ChannelError("rank " + std::to_string(other) + " announces a result of " + std::to_string(count) +
                         " bytes, the plan gives at most " + std::to_string(most));
    }
    const at::Tensor body = channel.receive({{count}, at::kByte}, other, kResultTag)->wait();
    merge(std::string(static_cast<const char*>(body.const_data_ptr()), static_cast<std::size_t>(count)), other,
          result.measurement, check);
  }
  if (result.check) {
    check.with = result.check->with;
    result.check = check;
  }
  Timeline& timeline = result.measurement.timeline;
  Seconds first(1e300);
  for (const Span& span : timeline.spans) first = std::min(first, span.start);
  for (Span& span : timeline.spans) {
    span.start -= first;
    span.end -= first;
  }
  derive_steps(timeline);
  std::sort(timeline.memory.begin(), timeline.memory.end(),
            [](const RankMemory& a, const RankMemory& b) { return a.rank < b.rank; });
}

/// Throws if any rank measured anything else, or in another order, than its list says.
void check_order(const RunResult& result, const Plan& plan, const Model& model, std::int64_t steps) {
  const bool asynchronous = schedule_of(plan).weights != Weights::Flushed;
  const auto done = static_cast<int>(result.steps_done - result.first_step);
  const auto lists = planned_actions(plan, tied_parameters(model, layers_of_stages(plan, model)),
                                     asynchronous ? static_cast<int>(std::max<std::int64_t>(steps, 1)) : 1);
  const auto wrong = disorder(result.measurement.timeline, plan, lists, asynchronous ? std::min(done, 1) : done,
                              static_cast<int>(result.first_step));
  if (wrong) throw ChannelError("the run did not keep to its plan: " + *wrong);
}

/// A missed deadline of a local channel with a line about each rank; any other error as it is.
std::exception_ptr with_report(std::exception_ptr error, const std::vector<std::unique_ptr<Channel>>& channels) {
  try {
    std::rethrow_exception(error);
  } catch (const ChannelError& e) {
    if (e.cause() != ChannelError::Cause::Deadline) return error;
    std::string lines;
    for (std::size_t rank = 0; rank < channels.size(); ++rank)
      lines += "\n  rank " + std::to_string(rank) + ": " + channels[rank]->activity().text();
    return std::make_exception_ptr(e.within("", lines));
  } catch (...) { return error; }
}

}  // namespace

void verify_lists(const Plan& plan, const Model& model, std::int64_t steps) {
  // Of an asynchronous schedule's steps those that reach its steady state show all that can happen.
  const int covered = static_cast<int>(std::clamp<std::int64_t>(steps, 1, step_window(plan).steps));
  const std::vector<std::vector<int>> layers = layers_of_stages(plan, model);
  check_fits(plan, model, layers);
  const auto tied = tied_parameters(model, layers);
  const auto result =
      verify(plan, planned_actions(plan, tied, covered), {.steps = covered, .reduce_groups = tied_groups(plan, tied)});
  if (const auto* infeasible = std::get_if<Infeasible>(&result))
    throw std::invalid_argument("the plan cannot run: " + infeasible->reason);
}

RunResult run_rank(const Plan& plan, const Model& model, const DataSource& data, const RunOptions& options, int rank,
                   Channel& channel, const std::function<double()>& seconds_now,
                   const std::function<void(const Progress&)>& progress) {
  if (!plan.microbatch_samples) {
    throw std::invalid_argument(
        "the plan does not say the samples of a microbatch; plan from a graph that stagecraft profile wrote");
  }
  const ScheduleEntry schedule = schedule_of(plan);
  const bool compares = options.check || !options.expected.empty();
  if (compares && (!schedule.trains || schedule.weights != Weights::Flushed)) {
    throw std::invalid_argument("a check compares a step's gradients with others, schedule \"" + plan.schedule +
                                "\" has none that could be compared");
  }
  std::optional<TrainingRecord> record;
  if (!options.expected.empty()) {
    record.emplace(options.expected);
    record->check_fits(plan, options);
  }
  at::set_num_threads(options.threads);
  const OwnStream stream(options.device);
  MemoryTracker tracker(options.device.type());
  std::optional<MemoryTracker::Scope> counting;
  counting.emplace(tracker);
  RunCheckpoints checkpoints(plan, model, options.checkpoint, options.optimizer, options.seed, rank, channel);
  const std::int64_t first_step = checkpoints.first_step();
  StageWorker worker(model, plan, rank, channel, data, options.optimizer, options.seed, seconds_now, first_step,
                     static_cast<int>(std::max<std::int64_t>(options.steps - first_step, 1)), options.device);
  const Bytes parameters = tracker.live();
  worker.visit_stages([&](int, StageProgram& program, Optimizer& optimizer) { checkpoints.load(program, optimizer); });

  std::optional<LossScaler> scaler = loss_scaler_of(plan, options.loss_scale);
  if (scaler && checkpoints.loss_scale()) scaler->set_state(*checkpoints.loss_scale());
  if (scaler) worker.scale_loss(*scaler);

  RunResult result;
  std::optional<Reference> reference;
  if (options.check) {
    counting.reset();
    reference.emplace(plan, model, data, options.optimizer, options.seed, options.device);
    checkpoints.load(reference->program(), reference->optimizer());
    if (scaler) reference->scale_loss(*scaler);
    result.check.emplace();
    counting.emplace(tracker);
  }
  if (record) {
    result.check.emplace();
    result.check->with = options.expected;
  }
  LossGathering losses(plan, model, rank, channel);
  Measurement& measurement = result.measurement;
  measurement.model = plan.model;
  measurement.schedule = plan.schedule;
  measurement.microbatches = plan.microbatches;
  measurement.microbatch_samples = plan.microbatch_samples;
  measurement.timeline.ranks = channel.ranks();
  for (const RankRole& role : ranks(plan)) measurement.timeline.stage_of_rank.push_back(role.stages.front());

  channel.barrier();
  std::vector<double> ends{seconds_now()};  // of each step on this rank
  const auto tell = [&](std::int64_t step) {
    try {
      measurement.losses.push_back(
          losses.receive(worker.asynchronous() ? static_cast<int>(step - first_step) * plan.microbatches : 0));
    } catch (const ChannelError& e) {
      throw e.within("rank 0, gathering the losses of step " + std::to_string(step + 1) + ": ");
    }
    const auto k = static_cast<std::size_t>(step - first_step);
    if (progress) {
      progress({step, options.steps, measurement.losses.back(), Seconds(ends[k + 1] - ends[k]),
                worker.loss_scaler() ? std::optional(worker.loss_scaler()->scale()) : std::nullopt});
    }
  };
  const RangeName step_range = range_name("step");
  std::int64_t done = first_step;
  // A GPU's losses are fetched a step late, so that the host never waits for the step that it has just enqueued. And
  // rank 0 tells a step later still, so that it never waits for the last stage.
  const std::int64_t lag = options.device.is_cpu() || reference || record ? 0 : 1;
  std::int64_t sent = first_step;
  std::int64_t told = first_step;
  const auto send_until = [&](std::int64_t end) {
    for (; sent < end; ++sent) losses.send(worker.take_losses(sent));
  };
  const auto tell_until = [&](std::int64_t end) {
    for (; rank == 0 && told < end; ++told) tell(told);
  };
  if (worker.asynchronous() && first_step < options.steps) {
    // This rank may have no microbatch of a step: it hears of that one with the next.
    worker.replay([&](std::int64_t step) {
      while (ends.size() < static_cast<std::size_t>(step - first_step) + 2) ends.push_back(seconds_now());
      send_until(step + 1 - lag);
      tell_until(step - lag);
    });
    while (ends.size() < static_cast<std::size_t>(options.steps - first_step) + 1) ends.push_back(seconds_now());
    done = options.steps;
    send_until(done);
    tell_until(done - 1);
    (void)checkpoints.after_step(worker, done, options.steps);
  }
  for (std::int64_t step = first_step; !worker.asynchronous() && step < options.steps; ++step) {
    const Range range(step_range, step);
    worker.compute(step);
    if (reference) {
      counting.reset();
      const MicrobatchLosses own = worker.take_losses(step);
      losses.send(own);
      sent = step + 1;
      reference->compute(step);
      if (!reference->overflow()) compare_gradients(worker, *reference, *result.check);
      compare_losses(own, *reference, *result.check);
      reference->update();
    }
    if (record) {
      counting.reset();
      const MicrobatchLosses own = worker.take_losses(step);
      losses.send(own);
      sent = step + 1;
      record->compare_gradients(step, worker.parameters(), *result.check);
      record->compare_losses(step, own, *result.check);
    }
    send_until(step + 1 - lag);
    worker.update(step);
    ends.push_back(seconds_now());
    done = step + 1;
    if (done - first_step == kMemorySteps) counting.reset();
    tell_until(step - lag);
    if (checkpoints.after_step(worker, done, options.steps)) break;
  }
  if (record) {
    worker.visit_stages([&](int, StageProgram& program, Optimizer&) {
      record->compare_end(program.parameters(), program.buffers(), *result.check);
    });
  }
  counting.reset();
  result.first_step = first_step;
  result.steps_done = done;
  send_until(done);
  tell_until(done);
  if (worker.loss_scaler()) {
    result.loss_scale = worker.loss_scaler()->state();
    result.skipped_steps = worker.loss_scaler()->skipped();
  }
  try {
    losses.finish();
  } catch (const ChannelError& e) { throw e.within("rank " + std::to_string(rank) + ", sending losses: "); }
  measurement.timeline.spans = worker.take_spans();
  measurement.timeline.memory.push_back({rank, tracker.peak(), {{"parameters", parameters}}});
  channel.activity().begin({.action = "gathering of results"});
  gather(result, plan, rank, channel);
  if (rank == 0) check_order(result, plan, model, options.steps - first_step);
  return result;
}

RunResult run_local(const Plan& plan, const Model& model, const DataSource& data, const RunOptions& options,
                    std::chrono::milliseconds deadline, const std::function<void(const Progress&)>& progress) {
  verify_lists(plan, model, options.steps);
  const int count = static_cast<int>(ranks(plan).size());
  auto channels = make_local_channels(count, deadline);
  const auto begin = std::chrono::steady_clock::now();
  const auto now = [begin] { return std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count(); };
  std::vector<RunResult> results(static_cast<std::size_t>(count));
  std::mutex mutex;
  std::exception_ptr failure;
  {
    std::vector<std::jthread> threads;
    for (int rank = 0; rank < count; ++rank) {
      threads.emplace_back([&, rank] {
        Channel& channel = *channels[static_cast<std::size_t>(rank)];
        try {
          results[static_cast<std::size_t>(rank)] = run_rank(plan, model, data, options, rank, channel, now, progress);
        } catch (const std::exception& e) {
          {
            const std::lock_guard lock(mutex);
            if (!failure) failure = with_report(std::current_exception(), channels);
          }
          channel.abort("rank " + std::to_string(rank) + " failed: " + e.what());
        }
      });
    }
  }
  if (failure) std::rethrow_exception(failure);
  return std::move(results.front());
}

}  // namespace stagecraft
