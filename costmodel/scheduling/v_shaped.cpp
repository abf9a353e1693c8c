// Schedules of two stages on a rank, of which position d of p has the stages d and 2 p - 1 - d: the second half of the
// pipeline runs back over the same ranks.

#include <algorithm>
#include <array>
#include <deque>
#include <functional>
#include <string>

#include "costmodel/errors.h"
#include "costmodel/index.h"
#include "costmodel/scheduling/building_blocks.h"

namespace stagecraft::scheduling {
namespace {

/// The list of a rank with a stage `near` the beginning of the pipeline and a stage `far` from it. Each call adds an
/// action of the next of the replica's microbatches; those beyond its last one are left out.
class VList {
 public:
  VList(const PipelineShape& shape, int position, int replica)
      : near_(position), far_(shape.stages - 1 - position), microbatches_(own_of(shape, position, replica)) {}
  [[nodiscard]] int near() const { return near_; }
  [[nodiscard]] int far() const { return far_; }

  void forward(int stage) { add(ActionKind::Forward, stage); }
  /// The backward as a whole.
  void backward(int stage) { add(ActionKind::Backward, stage); }
  /// The gradient of the inputs; that of the weights waits.
  void inputs(int stage) {
    pending_.push_back({ActionKind::WeightGradient, stage, number(ActionKind::Backward, stage), -1});
    add(ActionKind::Backward, stage);
  }
  /// The oldest weight gradient of the stage, or of both, that waits.
  void weights(int stage) { take(std::ranges::find(pending_, stage, &Action::stage)); }
  void weights() { take(pending_.begin()); }

  [[nodiscard]] int own() const { return to_int(microbatches_.size()); }
  [[nodiscard]] int forwards(int stage) const { return number(ActionKind::Forward, stage); }
  [[nodiscard]] std::vector<Action> done() {
    while (!pending_.empty()) weights();
    return std::move(out_);
  }

 private:
  [[nodiscard]] int& number(ActionKind kind, int stage) {
    return counts_[kind == ActionKind::Forward ? 0 : 1][stage == near_ ? 0 : 1];
  }
  [[nodiscard]] int number(ActionKind kind, int stage) const {
    return counts_[kind == ActionKind::Forward ? 0 : 1][stage == near_ ? 0 : 1];
  }
  void add(ActionKind kind, int stage) { put({kind, stage, number(kind, stage)++, -1}); }
  void take(const std::deque<Action>::iterator& which) {
    if (which == pending_.end()) return;
    put(*which);
    pending_.erase(which);
  }
  /// Adds the action of the microbatch with this number among the replica's.
  void put(const Action& action) {
    if (action.microbatch < own())
      out_.push_back(compute(action.kind, action.stage, microbatches_[to_index(action.microbatch)]));
  }

  int near_, far_;
  std::vector<int> microbatches_;
  std::array<std::array<int, 2>, 2> counts_{};  // of forwards and of backwards, of near and of far
  std::deque<Action> pending_;
  std::vector<Action> out_;
};

ScheduleEntry v_entry(const std::string& name, const std::string& help) {
  ScheduleEntry out;
  out.name = name;
  out.help = help;
  out.equal_replicas = true;
  out.chunked = true;
  out.placement = Placement::V;
  out.splits_backward = true;
  return out;
}

/// As ScheduleEntry::in_flight_bound: `most`, of p positions, or all that there are.
std::function<int(const PipelineShape&, int)> at_most(int (*most)(int p)) {
  return [most](const PipelineShape& shape, int position) {
    return std::min(most(shape.stages / 2), 2 * most_own(shape, position));
  };
}

void times(int count, const std::function<void()>& what) {
  for (int i = 0; i < count; ++i) what();
}

std::vector<Action> zero_bubble_v(const PipelineShape& shape, int position, int replica) {
  VList list(shape, position, replica);
  const int near = list.near();
  const int far = list.far();
  const int p = shape.stages / 2;
  const int after = p - position;
  const int microbatches = std::max(2 * p - 1, list.own());
  times(2 * after - 1, [&] { list.forward(near); });
  times(position, [&] {
    list.forward(far);
    list.forward(near);
  });
  times(after, [&] {
    list.forward(far);
    list.inputs(far);
    list.weights(far);
  });
  while (list.forwards(far) < microbatches) {
    if (list.forwards(near) < microbatches) list.forward(near);
    list.inputs(near);
    list.weights(near);
    list.forward(far);
    list.inputs(far);
    list.weights(far);
  }
  times(position, [&] {
    list.inputs(near);
    list.inputs(far);
  });
  times(after, [&] {
    list.inputs(near);
    list.weights(near);
  });
  times(position, [&] { list.weights(far); });
  return list.done();
}

std::vector<Action> dual_pipe_v(const PipelineShape& shape, int position, int replica) {
  VList list(shape, position, replica);
  const int near = list.near();
  const int far = list.far();
  const int p = shape.stages / 2;
  const int after = p - 1 - position;
  times(2 * after, [&] { list.forward(near); });
  times(position + 1, [&] {
    list.forward(near);
    list.forward(far);
  });
  times(after, [&] {
    list.inputs(far);
    list.weights();
    list.forward(far);
  });
  const auto far_with_near = [&] {
    list.forward(far);
    list.backward(near);
  };
  times(list.own() - 2 * p + position + 1, [&] {
    list.forward(near);
    list.backward(far);
    far_with_near();
  });
  times(after, [&] {
    list.backward(far);
    far_with_near();
  });
  // The second half of the backwards is split.
  const int first_split = 2 * ((position + 1) / 2) + (position + 1) % 2;
  for (int i = 0; i < 2 * (position + 1); ++i) {
    const int stage = i % 2 == 0 ? far : near;
    i < first_split ? list.backward(stage) : list.inputs(stage);
  }
  times(after, [&] {
    list.weights();
    list.inputs(near);
  });
  return list.done();
}

/// The slots in which microbatch 0 of a rank is forward through its near and far stage, and then backward through its
/// far and near one. Microbatch m follows 6 m slots later.
using VSlots = std::array<int, 4>;

VSlots v_half_slots(int p, int r) {
  const int x = p % 2 == 0 ? 3 : 0;
  return {2 * r, 3 * p - r - 2, 3 * p + x + 2 * r - 1, 6 * p + x - r - 2};
}

VSlots v_min_slots(int p, int r) {
  const int x = p % 3 == 0 ? 2 : 0;
  return {r, 2 * p - 1 - r, 2 * p + x + r, 4 * p + x - r - 1};
}

/// The actions in the order of their slots; weight gradients take free slots.
std::vector<Action> by_slots(const PipelineShape& shape, int position, int replica, VSlots (*slots_of)(int p, int r)) {
  constexpr int kPeriod = 6;
  VList list(shape, position, replica);
  const VSlots slots = slots_of(shape.stages / 2, position);
  const int end = slots.back() + kPeriod * (list.own() - 1);
  for (int slot = 0; slot <= end; ++slot) {
    bool is_free = true;
    for (std::size_t i = 0; i < slots.size(); ++i) {
      const int since = slot - slots[i];
      if (since < 0 || since % kPeriod != 0 || since / kPeriod >= list.own()) continue;
      const int stage = i == 0 || i == 3 ? list.near() : list.far();
      i < 2 ? list.forward(stage) : list.inputs(stage);
      is_free = false;
    }
    if (is_free) list.weights();
  }
  return list.done();
}

ScheduleEntry slots_entry(const std::string& name, const std::string& help, VSlots (*slots_of)(int p, int r),
                          int (*most)(int p)) {
  ScheduleEntry out = v_entry(name, help);
  out.compute_actions = [slots_of](const PipelineShape& shape, int position, int replica) {
    return by_slots(shape, position, replica, slots_of);
  };
  out.in_flight_bound = at_most(most);
  return out;
}

}  // namespace

/// Source: Qi et al., ICLR 2024, section 6, and torch 2.11's ScheduleZBVZeroBubble.
ScheduleEntry zb_v_schedule() {
  ScheduleEntry out = v_entry("zb-v",
                              "two stages on a rank in a V, no idle time between if F, I and W take equally long "
                              "(Qi et al., ICLR 2024)");
  out.compute_actions = zero_bubble_v;
  out.in_flight_bound = at_most([](int p) { return 2 * p; });
  return out;
}

/// Source: DeepSeek-AI, arXiv 2412.19437, and torch 2.11's ScheduleDualPipeV.
ScheduleEntry dualpipev_schedule() {
  ScheduleEntry out = v_entry("dualpipev",
                              "two stages on a rank in a V, each forward before a backward that it could "
                              "overlap with (DeepSeek-AI, 2024)");
  out.compute_actions = dual_pipe_v;
  out.in_flight_bound = at_most([](int p) { return 2 * p + 1; });
  out.mixes_backwards = true;
  out.check = [](const PipelineShape& shape) {
    const int least = shape.stages * replicas_of(shape, 0);
    if (shape.microbatches >= least) return;
    throw InputError(
        ErrorKind::ScheduleMismatch,
        "schedule \"dualpipev\": " + std::to_string(shape.microbatches) + " microbatches are fewer than the " +
            std::to_string(shape.stages) + " stages" +
            (replicas_of(shape, 0) > 1 ? " of " + std::to_string(replicas_of(shape, 0)) + " replicas" : "") +
            ", at least " + std::to_string(least) + " can run");
  };
  return out;
}

/// Source: Qi et al., NeurIPS 2024.
ScheduleEntry v_half_schedule() {
  return slots_entry("v-half", "zb-v with half of the activations and more idle time (Qi et al., NeurIPS 2024)",
                     v_half_slots, [](int p) { return 2 * ((p + 2) / 2); });
}

/// Source: Qi et al., NeurIPS 2024.
ScheduleEntry v_min_schedule() {
  return slots_entry("v-min", "zb-v with a third of the activations and the most idle time (Qi et al., NeurIPS 2024)",
                     v_min_slots, [](int p) { return 2 * ((p + 4) / 3); });
}

}  // namespace stagecraft::scheduling
