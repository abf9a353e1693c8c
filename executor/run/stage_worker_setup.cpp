#include <algorithm>
#include <map>
#include <set>
#include <stdexcept>
#include <unordered_map>

#include "costmodel/timeline_order.h"
#include "executor/channel/control_tags.h"
#include "executor/device/dtype.h"
#include "executor/run/stage_worker.h"
#include "executor/stage/gradient_norm.h"

// What a rank holds before its first action.

namespace stagecraft {
namespace {

constexpr std::size_t kBatchesAhead = 2;
/// Spans of a run that room is made for at once; longer runs make more as they go.
constexpr std::size_t kMostSpansAhead = std::size_t{1} << 20;

std::size_t at_(int i) { return static_cast<std::size_t>(i); }

}  // namespace

StageWorker::StageWorker(const Model& model, const Plan& plan, int rank, Channel& channel, const DataSource& data,
                         const OptimizerOptions& optimizer, std::uint64_t seed, std::function<double()> now,
                         std::int64_t first_step, int steps, c10::Device device)
    : model_(model),
      plan_(plan),
      rank_(rank),
      channel_(channel),
      data_(data),
      optimizer_(optimizer),
      trainable_(trainable_names(model)),
      placement_{device, compute_type(plan.dtype)},
      clock_(device, std::move(now)),
      schedule_(schedule_of(plan)),
      asynchronous_(schedule_.weights != Weights::Flushed),
      first_step_(first_step),
      steps_(asynchronous_ ? steps : 1),
      tags_(plan),
      losses_(device) {
  const RankRole role = ranks(plan).at(at_(rank));
  const std::vector<std::vector<int>> layers = layers_of_stages(plan, model);
  check_fits(plan, model, layers);
  const auto tied = tied_parameters(model, layers);
  if (asynchronous_ && optimizer.clip_norm > 0) {
    throw std::invalid_argument("schedule \"" + plan.schedule +
                                "\" has no moment at which the whole gradient is there to be clipped; take 1f1b");
  }
  actions_ = planned_actions(plan, tied, steps_).at(at_(rank));
  for (const Action& action : actions_) {
    std::string name = to_string(action.kind);
    if (action.microbatch >= 0) name += " " + std::to_string(action.microbatch);
    ranges_.push_back(range_name(name));
  }
  wait_range_ = range_name("wait");
  spans_.reserve(std::min(kMostSpansAhead, measured_actions(plan, actions_).size() *
                                               static_cast<std::size_t>(asynchronous_ ? 1 : std::max(steps, 1))));
  reduces_ = static_cast<std::size_t>(std::ranges::count(actions_, ActionKind::Reduce, &Action::kind));

  for (const Boundary& boundary : plan.boundaries) {
    specs_.emplace_back();
    for (const BoundaryTensor& tensor : boundary.tensors)
      specs_.back().push_back({tensor.shape, dtype_of(tensor.dtype)});
  }
  for (const bool gradient : {false, true}) {
    posted_[gradient].resize(plan.boundaries.size());
    handed_[gradient].resize(plan.boundaries.size());
    for (auto& by_microbatch : posted_[gradient]) by_microbatch.resize(at_(plan.microbatches * steps_));
    for (auto& by_microbatch : handed_[gradient]) by_microbatch.resize(at_(plan.microbatches * steps_));
  }
  for (const int stage : role.stages) {
    hold(stage, layers, seed);
    Held& own = held_.back();
    for (const Action& action : actions_) {
      if (action.kind == ActionKind::WeightGradient && action.stage == stage) own.split.insert(action.microbatch);
      // A backward in parts leaves its weight gradients for later, so there is nothing to wait for in it.
      if (action.kind == ActionKind::Backward && action.stage == stage) own.last_backward = action.microbatch;
    }
    if (own.split.contains(own.last_backward)) own.last_backward = -1;
    load_ahead(own, first_step);
    std::vector<at::Tensor> values;
    for (const Parameter& parameter : own.program->parameters()) values.push_back(parameter.value);
    optimizers_.push_back(std::make_unique<Optimizer>(optimizer, std::move(values)));
    if (!asynchronous_) continue;
    own.versions = std::make_unique<WeightVersions>(schedule_.weights, *own.program, *optimizers_.back());
    PipelineShape shape = pipeline_shape(plan);
    shape.steps = steps_;
    for (int m = 0; m < plan.microbatches * steps_; ++m) {
      auto& [count, last] = own.covered[update_of(schedule_, shape, stage, m)];
      ++count;
      last = m;
    }
  }
  tie(tied_of_rank(plan, model, layers, tied, rank));
}

void StageWorker::hold(int stage, const std::vector<std::vector<int>>& layers, std::uint64_t seed) {
  std::unordered_map<std::string, int> index;
  for (std::size_t i = 0; i < model_.layers.size(); ++i) index[model_.layers[i].name] = static_cast<int>(i);
  Held own;
  own.stage = stage;
  std::vector<ReceivedValue> received;
  std::vector<ValueRef> sent;
  std::map<std::pair<int, int>, int> sent_slot;
  for (std::size_t b = 0; b < plan_.boundaries.size(); ++b) {
    const Boundary& boundary = plan_.boundaries[b];
    own.slots.emplace_back();
    if (boundary.destination == stage) own.incoming.push_back(static_cast<int>(b));
    if (boundary.source == stage) own.outgoing.push_back(static_cast<int>(b));
    for (const BoundaryTensor& tensor : boundary.tensors) {
      const ValueRef value{index.at(tensor.layer), *tensor.output, -1};
      if (boundary.destination == stage) {
        own.slots.back().push_back(static_cast<int>(received.size()));
        received.push_back({value, tensor.gradient});
      } else if (boundary.source == stage) {
        const auto [it, fresh] = sent_slot.emplace(std::pair(value.layer, value.output), static_cast<int>(sent.size()));
        if (fresh) sent.push_back(value);
        own.slots.back().push_back(it->second);
      }
    }
  }
  own.program = std::make_unique<StageProgram>(model_, layers[at_(stage)], std::move(received), std::move(sent), seed,
                                               placement_);
  if (!schedule_.trains) own.program->evaluate();
  if (plan_.stages[at_(stage)].recompute) own.program->recompute_every(plan_.stages[at_(stage)].recompute_every);
  own.flights.resize(at_(plan_.microbatches * steps_));
  own.input_gradients.resize(at_(plan_.microbatches * steps_));
  own.rests.resize(at_(plan_.microbatches * steps_));
  own.replica_group = replica_ranks(plan_, stage);
  if (own.replica_group.size() > 1 && !asynchronous_ && schedule_.trains)
    own.statistics = std::make_unique<MovingStatistics>(model_, *own.program, [](int) { return true; });
  held_.push_back(std::move(own));
}

void StageWorker::tie(const std::vector<TiedGradient>& tied) {
  for (const TiedGradient& each : tied) {
    if (asynchronous_) {
      throw std::invalid_argument("parameter \"" + each.name + "\" is held by several layers, which schedule \"" +
                                  plan_.schedule + "\" cannot keep equal; take 1f1b");
    }
    Tie tie{{}, each.ranks, each.tag};
    for (std::size_t h = 0; h < held_.size(); ++h) {
      const std::vector<Parameter>& parameters = held_[h].program->parameters();
      TiedCopies stage;
      stage.held = static_cast<int>(h);
      for (std::size_t i = 0; i < parameters.size(); ++i) {
        if (parameters[i].name != each.name) continue;
        stage.copies.push_back(static_cast<int>(i));
        held_[h].tied.insert(static_cast<int>(i));
      }
      if (!stage.copies.empty()) tie.stages.push_back(std::move(stage));
    }
    ties_.push_back(std::move(tie));
  }
}

void StageWorker::load_ahead(Held& own, std::int64_t first_step) {
  if (own.program->data_inputs().empty()) return;
  std::vector<int> order;
  for (const Action& action : actions_) {
    if (action.kind == ActionKind::Forward && action.stage == own.stage) order.push_back(action.microbatch);
  }
  if (order.empty()) return;
  own.data = std::make_unique<Prefetch>(
      [this, order, first_step, inputs = own.program->data_inputs()](std::int64_t i) {
        const auto count = static_cast<std::int64_t>(order.size());
        const int microbatch = order[static_cast<std::size_t>(i % count)];
        std::vector<at::Tensor> batch =
            data_.batch(first_step + i / count * steps_ + microbatch / plan_.microbatches,
                        microbatch % plan_.microbatches, plan_.microbatches, *plan_.microbatch_samples, inputs);
        // A copy to a GPU goes on beside the host from such memory only.
        if (!placement_.device.is_cpu()) {
          for (at::Tensor& tensor : batch) tensor = tensor.pin_memory();
        }
        return batch;
      },
      kBatchesAhead);
}

}  // namespace stagecraft
