#include "costmodel/prediction/memory_replay.h"

#include <algorithm>
#include <array>
#include <map>
#include <set>
#include <utility>

#include "costmodel/gradient_sums.h"
#include "costmodel/index.h"
#include "costmodel/prediction/device_match.h"
#include "costmodel/prediction/memory.h"
#include "costmodel/prediction/stage_costs.h"

namespace stagecraft {
namespace {

/// The bytes that a stage needs, independent of the moment.
struct StageNeeds {
  RankMemory none;               ///< StageMemories without a microbatch
  Bytes parameters;              ///< of one version
  Bytes frozen;                  ///< frozen parameters and buffers
  Bytes gradients;               ///< 0 without training
  std::vector<Bytes> optimizer;  ///< its state, by replica; 0 without training
  Bytes per_microbatch;          ///< activations
  Bytes once;                    ///< activations of what is run again, or of a forward that keeps nothing
  Bytes inputs;                  ///< per microbatch
  Bytes workspace;               ///< the largest of any layer
  Bytes beside_saved;            ///< workspace of a layer less the saved bytes of later layers, the largest
  Bytes growing;                 ///< the same plus the gradients of later layers
  Bytes beside_kept;             ///< workspace of a layer less the kept gradients of it and earlier layers, the largest
  Bytes kept;                    ///< kept_gradient_bytes per microbatch
  Bytes sent_back;               ///< gradients of what it received
  Bytes communication;           ///< reduce_buffer_bytes
  Bytes messages;                ///< one over each boundary
  Bytes divided;                 ///< parameters that its replicas gather, or of whose gradients each keeps a part
  std::vector<Bytes> own;        ///< of them, what each replica keeps
  std::vector<Bytes> summed;     ///< and of their gradients
  bool gathers = false;          ///< BoundPlan::gathers
  bool keeps_parts = false;      ///< of its gradients, see StateSharding::Gradients
  bool measured = true;          ///< the bytes of all its layers
  bool splits = false;           ///< its backward
  bool has_flat_gradients = false;
};

/// `layers`: the stage's, in the plan's order.
StageNeeds needs_of(const Graph& graph, const BoundPlan& plan, const StageMemories& memories, int stage,
                    const std::vector<const Layer*>& layers) {
  const Stage& planned_stage = plan.plan().stages[to_index(stage)];
  const bool trains = plan.schedule().trains;
  StageNeeds out;
  out.none = memories(stage, 0);
  const RankMemory one = memories(stage, 1);
  out.measured = !graph.estimate;
  out.parameters = one.part(MemoryPart::Parameters);
  out.frozen = one.part(MemoryPart::Frozen);
  out.gradients = one.part(MemoryPart::Gradients);
  out.optimizer.resize(to_index(plan.replicas(stage)));
  out.once = out.none.part(MemoryPart::Activations);
  out.per_microbatch = one.part(MemoryPart::Activations) - out.once;
  out.inputs = one.part(MemoryPart::Inputs);
  out.workspace = one.part(MemoryPart::Workspace);
  out.sent_back = one.part(MemoryPart::Sending);
  out.gathers = plan.gathers(stage);
  out.keeps_parts = trains && plan.plan().sharding >= StateSharding::Gradients && plan.replicas(stage) > 1;
  out.has_flat_gradients = trains && !plan.asynchronous() && plan.replicas(stage) > 1 && !out.keeps_parts;
  out.own.resize(to_index(plan.replicas(stage)));
  out.summed.resize(out.own.size());
  out.beside_saved = out.workspace;
  Bytes saved;
  Bytes gradients;
  Bytes beside;
  Bytes growing;
  // The backward makes a tied parameter's gradient in the last layer that holds it.
  const std::vector<const Layer*> backwards(layers.rbegin(), layers.rend());
  const std::vector<Bytes> made = first_held_bytes(backwards);
  for (std::size_t i = 0; i < backwards.size(); ++i) {
    const Layer& layer = *backwards[i];
    const Bytes workspace = layer.workspace_bytes.value_or(activation_bytes(layer));
    out.measured = out.measured && layer.saved_bytes && layer.workspace_bytes;
    beside = std::max(beside, workspace - saved);
    growing = std::max(growing, workspace - saved + gradients);
    saved += bytes_saved(layer);
    gradients += gradient_bytes(graph.types, made[i]);
  }
  Bytes kept;
  for (const Layer* pointer : layers) {
    const Layer& layer = *pointer;
    kept += kept_gradient_bytes(layer);
    out.beside_kept = std::max(out.beside_kept, layer.workspace_bytes.value_or(activation_bytes(layer)) - kept);
  }
  out.kept = kept;
  // Of what a stage runs again, the saved bytes are not spread over its layers like this.
  const bool spread = trains && !planned_stage.recompute;
  if (spread) out.beside_saved = std::max(beside, Bytes(0));
  out.growing = spread ? std::max(growing, gradients - saved) - out.beside_saved : out.gradients;
  out.growing = std::max(out.growing, Bytes(0));
  return out;
}

/// A stage of a rank at one moment.
struct StageUsage {
  const StageNeeds* needs = nullptr;
  int replica = 0;
  int in_flight = 0;  ///< microbatches
  int waiting = 0;    ///< of them, for their weight gradient
  bool gradients = false;
  bool whole = false;  ///< its parameters are gathered
  Bytes gathering;     ///< memory for what arrives of them
  Bytes growing;       ///< of gradients, while a backward makes them
  int versions = 1;
  Bytes receiving;
  Bytes unsent;   ///< gradients that a backward made
  Bytes sending;  ///< messages that may not have left
  Bytes workspace;
  Bytes reduction;
  Bytes libraries;  ///< of the rank; its first stage counts them

  /// By MemoryPart.
  [[nodiscard]] std::array<Bytes, kMemoryParts> parts() const {
    std::array<Bytes, kMemoryParts> out;
    const auto at = [&](MemoryPart part) -> Bytes& { return out[static_cast<std::size_t>(part)]; };
    at(MemoryPart::Activations) = needs->per_microbatch * in_flight + (in_flight > 0 ? needs->once : Bytes(0));
    const Bytes own = needs->own[to_index(replica)];
    at(MemoryPart::Communication) = needs->communication + gathering;
    at(MemoryPart::Frozen) = needs->frozen;
    at(MemoryPart::Gradients) = (gradients ? needs->gradients : Bytes(0)) +
                                (needs->keeps_parts ? needs->summed[to_index(replica)] : Bytes(0)) + growing;
    at(MemoryPart::Inputs) = needs->inputs * in_flight;
    at(MemoryPart::KeptGradients) = needs->kept * waiting;
    at(MemoryPart::Libraries) = libraries;
    at(MemoryPart::OlderVersions) = needs->parameters * (versions - 1);
    at(MemoryPart::Optimizer) = needs->optimizer[to_index(replica)];
    at(MemoryPart::Parameters) = needs->parameters;
    if (needs->gathers) at(MemoryPart::Parameters) += own - (whole ? Bytes(0) : needs->divided);
    at(MemoryPart::Receiving) = receiving;
    at(MemoryPart::Reduction) = reduction;
    at(MemoryPart::Sending) = unsent + sending;
    at(MemoryPart::Workspace) = workspace;
    return out;
  }
  [[nodiscard]] Bytes total() const {
    Bytes out;
    for (const Bytes part : parts()) out += part;
    return out;
  }
};

RankMemory memory_of(const StageUsage& state, int rank) {
  RankMemory out{rank, state.total(), {}};
  const std::array<Bytes, kMemoryParts> parts = state.parts();
  for (std::size_t i = 0; i < kMemoryParts; ++i) {
    const auto part = static_cast<MemoryPart>(i);
    if (parts[i] > Bytes(0) || state.needs->none.parts.contains(part)) out.parts[part] = parts[i];
  }
  return out;
}

/// The parameter versions of a stage under an asynchronous schedule.
class Versions {
 public:
  Versions(Weights weights, int microbatches) : weights_(weights), microbatches_(microbatches) {}
  void begin(int microbatch) {
    bound_ = weights_ == Weights::StepBefore ? std::max(0, microbatch / microbatches_ - 1) : updates_;
    used_[microbatch] = bound_;
    ++users_[bound_];
  }
  void end(int microbatch) {
    const auto it = used_.find(microbatch);
    if (it == used_.end()) return;
    bound_ = it->second;
    if (--users_[it->second] == 0) users_.erase(it->second);
    used_.erase(it);
  }
  void update() { bound_ = ++updates_; }
  [[nodiscard]] int count() const {
    const int oldest = weights_ == Weights::StepBefore ? std::max(0, updates_ - 1) : updates_;
    int out = updates_ - oldest + 1;
    for (const auto& [version, users] : users_) out += version < oldest ? 1 : 0;
    return out + (bound_ < oldest && !users_.contains(bound_) ? 1 : 0);
  }
  /// An update copies the newest version if it is still needed, otherwise it works in place.
  [[nodiscard]] int count_during_update() const {
    return count() + (weights_ == Weights::StepBefore || users_.contains(updates_) ? 1 : 0);
  }

 private:
  Weights weights_;
  int microbatches_;
  int updates_ = 0;
  int bound_ = 0;            // that of the last backward, which its stage refers to until the next update or microbatch
  std::map<int, int> used_;  // by microbatch
  std::map<int, int> users_;  // by version
};

class RankReplay {
 public:
  RankReplay(const BoundPlan& plan, const std::vector<StageNeeds>& needs, const std::vector<std::vector<Bytes>>& bytes,
             int rank, const std::vector<Action>& list, DeviceKind device, Bytes libraries)
      : plan_(plan), bytes_(bytes), rank_(rank), list_(list), device_(device) {
    for (const int stage : plan.ranks()[to_index(rank)].stages) {
      StageUsage& state = states_.emplace_back();
      state.needs = &needs[to_index(stage)];
      state.replica = plan.ranks()[to_index(rank)].replica;
      state.gradients = state.needs->has_flat_gradients;
      versions_.emplace_back(plan.schedule().weights, plan.plan().microbatches);
    }
    states_.front().libraries = libraries;
    for (const Action& action : list) {
      if (action.kind != ActionKind::WeightGradient) continue;
      if (needs[to_index(action.stage)].splits) split_.emplace(action.stage, action.microbatch);
    }
  }

  MemoryReplay run() {
    best_ = states_;
    out_.during.reserve(list_.size());
    out_.after.reserve(list_.size());
    for (const Action& action : list_) {
      perform(action);
      out_.during.push_back(count());
      after(action);
      Bytes left;
      for (const StageUsage& state : states_) left += state.total();
      out_.after.push_back(left);
    }
    out_.peak.rank = rank_;
    for (const StageUsage& state : best_) {
      out_.stages.push_back(memory_of(state, rank_));
      for (const auto& [part, bytes] : out_.stages.back().parts) out_.peak.parts[part] += bytes;
      out_.peak.total += out_.stages.back().total;
      out_.bounds.push_back(memory_bound(out_.stages.back(), state.needs->messages, state.needs->measured, device_));
    }
    out_.bounds.front() += memory_margins(true, device_).base;
    for (const Bytes bound : out_.bounds) out_.bound += bound;
    return std::move(out_);
  }

 private:
  Bytes count() {
    Bytes total;
    for (const StageUsage& state : states_) total += state.total();
    if (total > most_) {
      most_ = total;
      best_ = states_;
    }
    return total;
  }

  /// Of a stage in states_. A rank has few stages.
  [[nodiscard]] std::size_t place_of(int stage) const {
    const std::vector<int>& stages = plan_.ranks()[to_index(rank_)].stages;
    return to_index(to_int(std::ranges::find(stages, stage) - stages.begin()));
  }

  [[nodiscard]] bool is_split(const Action& action) const {
    return !split_.empty() && split_.contains({action.stage, action.microbatch});
  }

  void perform(const Action& action) {
    forget_sent();
    const std::size_t place = place_of(action.stage);
    StageUsage& state = states_[place];
    const StageNeeds& needs = *state.needs;
    const bool asynchronous = plan_.asynchronous();
    if (is_compute(action.kind)) state.gathering = Bytes(0);
    if (needs.keeps_parts && (action.kind == ActionKind::Backward || action.kind == ActionKind::WeightGradient))
      state.gradients = true;
    switch (action.kind) {
      case ActionKind::Gather:
        state.whole = true;
        state.gathering = needs.divided;
        break;
      case ActionKind::Free:
        state.whole = false;
        break;
      case ActionKind::Forward:
        take_inputs(state, action);
        if (asynchronous) versions_[place].begin(action.microbatch);
        ++state.in_flight;
        state.workspace = plan_.schedule().trains ? needs.beside_saved : needs.workspace;
        break;
      case ActionKind::Backward:
        if (is_split(action)) {
          ++state.waiting;
          state.workspace = needs.beside_kept;
        } else {
          state.workspace = needs.beside_saved;
          if (!state.gradients || asynchronous) state.growing = needs.growing;
        }
        break;
      case ActionKind::WeightGradient:
        if (!is_split(action)) break;
        state.workspace = needs.beside_saved;
        if (!state.gradients) state.growing = needs.growing;
        break;
      case ActionKind::ReceiveActivation:
      case ActionKind::ReceiveGradient: {
        const bool gradient = carries_gradient(action.kind);
        const int boundary = *plan_.boundary(action.stage, action.peer);
        posted_.push_back({boundary, gradient, action.microbatch});
        state.receiving += bytes_[gradient][to_index(boundary)];
        break;
      }
      case ActionKind::SendActivation:
      case ActionKind::SendGradient: {
        const bool gradient = carries_gradient(action.kind);
        const Bytes bytes = bytes_[gradient][to_index(*plan_.boundary(action.stage, action.peer))];
        sent_bytes_ += bytes;
        // What a stage sends forth it keeps itself, until its backward if it trains.
        const bool counts = gradient || !plan_.schedule().trains;
        sent_.push_back({place, gradient ? -1 : action.microbatch, counts ? bytes : Bytes(0), bytes});
        if (counts) state.sending += bytes;
        if (gradient) state.unsent -= bytes;
        break;
      }
      case ActionKind::Reduce:
        if (asynchronous && plan_.replicas(action.stage) > 1) state.reduction = needs.gradients;
        break;
      case ActionKind::Update:
        // Parameters arrive in the memory of gradients.
        if (needs.keeps_parts && !needs.gathers) state.gradients = true;
        if (asynchronous) {
          state.versions = versions_[place].count_during_update();
          state.gradients = true;
        }
        break;
      default:
        break;
    }
  }

  void after(const Action& action) {
    const std::size_t place = place_of(action.stage);
    StageUsage& state = states_[place];
    state.workspace = state.growing = state.reduction = Bytes(0);
    const bool asynchronous = plan_.asynchronous();
    switch (action.kind) {
      case ActionKind::Forward:
        if (!plan_.schedule().trains) --state.in_flight;
        break;
      case ActionKind::Backward:
        take_inputs(state, action);
        state.unsent += state.needs->sent_back;
        // What a stage of this rank handed over is used now.
        for (const Passage& input : plan_.inputs(action)) {
          if (!plan_.is_message(action, input))
            states_[place_of(input.peer)].unsent -= bytes_[true][to_index(input.boundary)];
        }
        if (is_split(action)) break;
        release(place, action);
        break;
      case ActionKind::WeightGradient:
        if (!is_split(action)) break;
        --state.waiting;
        release(place, action);
        break;
      case ActionKind::Reduce:
        if (state.needs->keeps_parts) state.gradients = false;
        break;
      case ActionKind::Update:
        if (state.needs->keeps_parts) state.gradients = false;
        if (!asynchronous) break;
        versions_[place].update();
        state.gradients = false;
        break;
      default:
        break;
    }
    if (asynchronous) state.versions = versions_[place].count();
  }

  /// Messages that have left, which a rank looks at when they are many.
  void forget_sent() {
    // The executor checks which messages are complete at these numbers.
    constexpr Bytes kMuch{std::int64_t{1} << 18};
    constexpr std::size_t kMany = 32;
    if (sent_.size() < kMany && sent_bytes_ < kMuch) return;
    for (const Sent& sent : sent_) states_[sent.place].sending -= sent.counted;
    sent_.clear();
    sent_bytes_ = Bytes(0);
  }

  void release(std::size_t place, const Action& action) {
    for (Sent& sent : sent_) {
      if (sent.place != place || sent.microbatch != action.microbatch) continue;
      states_[place].sending += sent.bytes - sent.counted;
      sent.counted = sent.bytes;
    }
    --states_[place].in_flight;
    states_[place].gradients = true;
    if (plan_.asynchronous()) versions_[place].end(action.microbatch);
  }

  /// Messages that the action received are used, and count elsewhere from here on.
  void take_inputs(StageUsage& state, const Action& action) {
    for (const auto& [boundary, peer, gradient] : plan_.inputs(action)) {
      const auto message = std::ranges::find(posted_, Posted{boundary, gradient, action.microbatch});
      if (message == posted_.end()) continue;
      posted_.erase(message);
      state.receiving -= bytes_[gradient][to_index(boundary)];
    }
  }

  /// A message that was sent and whose tensors may still exist.
  struct Sent {
    std::size_t place;
    int microbatch;  // -1: a gradient
    Bytes counted;   // in StageUsage::sending
    Bytes bytes;
  };

  /// A receive whose message has not been used: few at a time, mostly the first.
  struct Posted {
    int boundary;
    bool gradient;
    int microbatch;
    friend bool operator==(const Posted&, const Posted&) = default;
  };

  const BoundPlan& plan_;
  const std::vector<std::vector<Bytes>>& bytes_;
  int rank_;
  const std::vector<Action>& list_;
  DeviceKind device_;
  std::vector<StageUsage> states_;
  std::vector<StageUsage> best_;
  std::vector<Versions> versions_;
  std::set<std::pair<int, int>> split_;  // (stage, microbatch)
  std::vector<Posted> posted_;
  std::vector<Sent> sent_;
  Bytes sent_bytes_;
  Bytes most_;
  MemoryReplay out_;
};

}  // namespace

MemoryPlace memory_place(const Topology& topology) {
  return {topology.levels.front().link.channel, topology.device.kind};
}

std::vector<MemoryReplay> replay_memory(const Graph& graph, const BoundPlan& plan,
                                        const std::vector<std::vector<Action>>& lists, const MemoryPlace& place) {
  const std::vector<bool> splits = splits_backward(graph, plan);
  const auto sums = gradient_sums(graph, plan);
  const auto layers = layers_of_stages(graph, plan.plan());
  const StageMemories memories(graph, plan);
  std::vector<StageNeeds> needs;
  for (int s = 0; s < plan.stages(); ++s) {
    needs.push_back(needs_of(graph, plan, memories, s, layers[to_index(s)]));
    needs.back().splits = splits[to_index(s)];
    if (!plan.schedule().trains) continue;
    needs.back().communication = communication_of(plan, sums[to_index(s)], place.channel);
    for (int r = 0; r < plan.replicas(s); ++r) {
      needs.back().optimizer[to_index(r)] =
          optimizer_bytes(graph, updated_bytes(sums[to_index(s)], plan.first_rank(s) + r, needs.back().parameters));
    }
    for (const GradientSum& sum : sums[to_index(s)]) {
      if (sum.tied || sum.parts.empty()) continue;
      needs.back().divided += gathered_bytes(sum);
      const Bytes value = value_bytes(sum.types.parameters);
      const std::vector<std::int64_t> parts = part_values(sum);
      for (std::size_t r = 0; r < parts.size(); ++r) {
        needs.back().own[r] += value * parts[r];
        needs.back().summed[r] += sum.parts[r];
      }
    }
  }
  const std::vector<std::vector<Bytes>> bytes = message_bytes(plan.plan());
  for (std::size_t b = 0; b < bytes[0].size(); ++b) {
    needs[to_index(plan.ends(to_int(b)).source)].messages += bytes[0][b];
    needs[to_index(plan.ends(to_int(b)).destination)].messages += bytes[0][b];
  }
  std::vector<MemoryReplay> out;
  for (std::size_t rank = 0; rank < lists.size(); ++rank)
    out.push_back(RankReplay(plan, needs, bytes, to_int(rank), lists[rank], place.device, graph.library_bytes).run());
  return out;
}

std::vector<MemoryReplay> replay_memory(const Graph& graph, const Topology& topology, const BoundPlan& plan,
                                        const std::vector<std::vector<Action>>& lists) {
  MemoryPlace place = memory_place(topology);
  if (topology.others.empty()) return replay_memory(graph, plan, lists, place);
  std::vector<MemoryReplay> out(lists.size());
  for (const std::string& type : types_of(topology, plan.plan())) {
    std::vector<std::size_t> ranks;
    for (std::size_t rank = 0; rank < lists.size(); ++rank) {
      const Device& device = device_at(topology, plan.ranks()[rank].device);
      if (device.name != type) continue;
      place.device = device.kind;
      ranks.push_back(rank);
    }
    std::vector<MemoryReplay> replays = replay_memory(graph_on(graph, type), plan, lists, place);
    for (const std::size_t rank : ranks) out[rank] = std::move(replays[rank]);
  }
  return out;
}

}  // namespace stagecraft
