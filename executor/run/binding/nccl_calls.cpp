#include "executor/run/binding/nccl_calls.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <numeric>
#include <set>
#include <stdexcept>
#include <tuple>
#include <utility>

#include "costmodel/index.h"
#include "executor/channel/channel.h"
#include "executor/channel/control_tags.h"
#include "executor/device/dtype.h"

namespace stagecraft::run {
namespace {

/// Communicators found so far, and their places.
class Communicators {
 public:
  explicit Communicators(std::vector<channel::CommunicatorPlan>& out) : out_(out) {}

  int edge(int boundary, bool gradient, int from, int to) {
    const auto [it, fresh] = edges_.emplace(std::tuple(boundary, gradient, from, to), out_.size());
    if (fresh) {
      out_.push_back({fmt::format("boundary {}, {} from rank {} to rank {}", boundary,
                                  gradient ? "gradients" : "activations", from, to),
                      {from, to},
                      {},
                      false,
                      0});
    }
    return to_int(it->second);
  }
  int reduction(const std::vector<int>& members, bool ties) {
    const auto [it, fresh] = reductions_.emplace(std::pair(members, ties), out_.size());
    if (fresh) {
      out_.push_back({fmt::format("{} of {}", ties ? "tied parameters" : "gradients", meeting::name_ranks(members)),
                      members,
                      {},
                      true,
                      0});
    }
    return to_int(it->second);
  }
  void carries(int communicator, int tag) {
    std::vector<int>& tags = out_[to_index(communicator)].tags;
    const auto it = std::lower_bound(tags.begin(), tags.end(), tag);
    if (it == tags.end() || *it != tag) tags.insert(it, tag);
  }

 private:
  std::vector<channel::CommunicatorPlan>& out_;
  std::map<std::tuple<int, bool, int, int>, std::size_t> edges_;
  std::map<std::pair<std::vector<int>, bool>, std::size_t> reductions_;
};

}  // namespace

channel::NcclProgram nccl_program(const BoundModel& bound, int steps) {
  channel::NcclProgram out;
  Communicators communicators(out.communicators);
  const BoundPlan& plan = bound.plan;
  const auto lists = plan.action_lists(plan.asynchronous() ? steps : 1);
  const auto add = [&](std::vector<channel::NcclCall>& calls, channel::NcclCall::Kind kind, int communicator, int tag,
                       channel::TensorSpec spec) {
    communicators.carries(communicator, tag);
    calls.push_back({kind, communicator, tag, std::move(spec)});
  };
  using Kind = channel::NcclCall::Kind;
  // With parts, `more` values follow each of them.
  const auto add_divided = [&](std::vector<channel::NcclCall>& calls, Kind kind, const GradientSum& sum, int tag,
                               std::int64_t more) {
    const StateType type = kind == Kind::AllGather ? sum.types.parameters : sum.types.gradients;
    std::vector<std::int64_t> counts = part_values(sum);
    for (std::int64_t& count : counts) count += more;
    add(calls, kind, communicators.reduction(sum.ranks, sum.tied.has_value()), tag,
        {{std::accumulate(counts.begin(), counts.end(), std::int64_t{0})}, device::dtype_of(type)});
    calls.back().counts = std::move(counts);
  };
  // A message counts for each parameter how many ranks have its gradient, but not one of a stage's replicas with parts.
  const auto add_sum = [&](std::vector<channel::NcclCall>& calls, const GradientSum& sum, int tag) {
    if (!sum.parts.empty()) return add_divided(calls, Kind::ReduceScatter, sum, tag, sum.tied ? 1 : 0);
    const std::int64_t values = gradient_values(sum) + to_int(sum.parameters.size());
    add(calls, Kind::AllReduce, communicators.reduction(sum.ranks, sum.tied.has_value()), tag,
        {{values}, device::dtype_of(sum.types.gradients)});
  };
  for (std::size_t rank = 0; rank < lists.size(); ++rank) {
    std::vector<channel::NcclCall>& calls = out.calls.emplace_back();
    const auto sums = sums_by_entry(plan, bound.sums, to_int(rank), lists[rank]);
    const std::vector<int>& stages = plan.ranks()[rank].stages;
    const auto tags_of = [&](int stage) {
      return channel::StageTags{to_int(std::ranges::find(stages, stage) - stages.begin()), to_int(stages.size())};
    };
    const auto add_gathers = [&](int stage) {
      int bucket = 0;
      for (const GradientSum& sum : bound.sums[to_index(stage)]) {
        if (!sum.tied && !sum.parts.empty() && !sum.parameters.empty())
          add_divided(calls, Kind::AllGather, sum, tags_of(stage).bucket(bucket++), 0);
      }
    };
    for (std::size_t i = 0; i < lists[rank].size(); ++i) {
      const Action& action = lists[rank][i];
      switch (action.kind) {
        case ActionKind::SendActivation:
        case ActionKind::SendGradient:
        case ActionKind::ReceiveActivation:
        case ActionKind::ReceiveGradient: {
          const bool gradient = carries_gradient(action.kind);
          const bool out_going = is_send(action.kind);
          const int b = *plan.boundary(action.stage, action.peer);
          const int peer = plan.runner(action.peer, action.microbatch);
          const int self = to_int(rank);
          const int edge = communicators.edge(b, gradient, out_going ? self : peer, out_going ? peer : self);
          const auto& tensors = plan.plan().boundaries[to_index(b)].tensors;
          bool joins = false;
          for (std::size_t t = 0; t < tensors.size(); ++t) {
            if (gradient && !tensors[t].gradient) continue;
            add(calls, out_going ? Kind::Send : Kind::Receive, edge, plan.tag(b, t, gradient),
                {tensors[t].shape, device::dtype_of(tensors[t].dtype)});
            calls.back().joins = std::exchange(joins, true);
          }
          break;
        }
        case ActionKind::Gather:
          add_gathers(action.stage);
          break;
        case ActionKind::Reduce: {
          int bucket = 0;
          std::int64_t counts = 0;
          const GradientSum* last = nullptr;  // of the stage's own
          for (const GradientSum* const sum : sums[i]) {
            if (sum->tied || sum->parameters.empty()) continue;
            add_sum(calls, *sum, tags_of(action.stage).bucket(bucket++));
            counts += to_int(sum->parameters.size());
            last = sum;
          }
          if (last && !last->parts.empty()) {
            add(calls, Kind::AllReduce, communicators.reduction(last->ranks, false),
                tags_of(action.stage).bucket(bucket), {{counts}, device::dtype_of(last->types.gradients)});
          }
          for (const GradientSum* const sum : sums[i]) {
            if (sum->tied) add_sum(calls, *sum, channel::kTiesTag + *sum->tied);
          }
          break;
        }
        default:
          break;
      }
    }
    for (const int stage : stages) {
      const std::optional<StatisticsExchange>& exchange = bound.statistics[to_index(stage)];
      if (!exchange) continue;
      add(calls, Kind::AllReduce, communicators.reduction(exchange->ranks, false), channel::kStatisticsTag,
          {{plan.plan().microbatches, exchange->values}, at::kFloat});
    }
    // After the update: the parameters that are not gathered before they are used.
    std::map<int, const GradientSum*> tied;
    for (const int stage : stages) {
      if (!plan.gathers(stage)) add_gathers(stage);
      for (const GradientSum& sum : bound.sums[to_index(stage)]) {
        if (sum.tied && !sum.parts.empty() && !sum.parameters.empty()) tied.emplace(*sum.tied, &sum);
      }
    }
    for (const auto& [tie, sum] : tied) add_divided(calls, Kind::AllGather, *sum, channel::kTiesTag + tie, 0);
  }
  // Creation order, which determines the numbers in the calls.
  std::vector<std::string> before;
  for (const channel::CommunicatorPlan& communicator : out.communicators) before.push_back(communicator.name);
  out.rounds = channel::assign_rounds(out.communicators);
  std::map<std::string, int> now;
  for (std::size_t c = 0; c < out.communicators.size(); ++c) now[out.communicators[c].name] = to_int(c);
  for (auto& calls : out.calls) {
    for (channel::NcclCall& call : calls) call.communicator = now.at(before[to_index(call.communicator)]);
  }
  return out;
}

channel::NcclProgram proved_nccl_program(const BoundModel& bound, std::int64_t steps) {
  const std::int64_t covered = std::clamp<std::int64_t>(steps, 1, bound.plan.step_window().steps);
  channel::NcclProgram program = nccl_program(bound, to_int(covered));
  if (const std::string wrong = channel::find_mismatch(program); !wrong.empty())
    throw std::logic_error("transfers of the plan do not match: " + wrong);
  return program;
}

}  // namespace stagecraft::run
