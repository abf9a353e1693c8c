#include "partitioner/bounds/order_bound.h"

#include <algorithm>
#include <limits>
#include <numeric>

#include "costmodel/schedule.h"
#include "partitioner/bounds/bound_limits.h"
#include "partitioner/costs/action_replay.h"

namespace stagecraft::partitioner {
namespace {

// On the number: through the references of std::max of Seconds g++ 12 does not vectorise the loops.
Seconds no_less_than_0(Seconds time) { return Seconds(std::max(0.0, time.value)); }

}  // namespace

OrderBound::OrderBound(const PipelineCosts& costs, const PathCuts& cuts) : costs_(costs), cuts_(cuts) {
  for (const PathCut& cut : cuts.fine()) {
    const auto add = [](CostsBefore& to, const PathSums& sums) {
      to.times[Forward].push_back(sums.forward);
      to.times[Back].push_back(sums.back);
      to.times[Least].push_back(sums.least);
      to.times[Update].push_back(sums.update);
      to.gradients.push_back(fractional(sums.untied));
    };
    add(low_, cut.low);
    add(high_, cut.high);
    hop_.push_back(cut.hop.forward);
    hop_back_.push_back(cut.hop.back);
  }
  first_ = 0;
  last_ = cuts.fine().size() - 1;
  while (cuts.fine()[first_].first == 0) ++first_;
  while (cuts.fine()[last_].first == cuts.fine().back().first) --last_;
}

std::optional<bool> OrderBound::refutes(Seconds time, const StageOrder& stages, const std::function<bool()>& stop) {
  if (costs_.schedule().splits_backward) return false;
  auto known = orders_.find(stages);
  if (known == orders_.end()) {
    if (events_ > BoundLimits::kMostAllEvents) return false;
    known = orders_.emplace(stages, begun(stages)).first;
    events_ += known->second.events.size();
  }
  Order& order = known->second;
  for (int round = 0; round < BoundLimits::kRounds; ++round) {
    if (order.low > time) return true;
    if (order.done || order.high <= time) return false;
    if (stop()) return std::nullopt;
    improve(order);
  }
  return false;
}

OrderBound::Order OrderBound::begun(const StageOrder& stages) const {
  Order out;
  std::vector<int> number;  // of each stage, among the stages with a node of the path; -1: without one
  for (std::size_t s = 0; s < stages.replicas.size(); ++s) {
    number.push_back(stages.on_path[s] ? to_int(out.replicas.size()) : -1);
    if (stages.on_path[s]) {
      out.replicas.push_back(stages.replicas[s]);
      out.loose.push_back(false);
    } else if (out.replicas.empty()) {
      out.loose_begin = true;
    } else {
      out.loose.back() = true;
    }
  }
  const std::vector<int>& replicas = out.replicas;
  const std::vector<std::vector<Action>>* lists = costs_.lists(stages.replicas);
  if (lists == nullptr) {
    out.low = kForever;  // the schedule runs no split with these replicas
    out.done = true;
    return out;
  }
  const bool fits = !replicas.empty() && to_int(replicas.size()) <= cuts_.fine().back().first;
  if (!fits || !add_events(out, *lists, number, costs_.microbatches())) {
    out.done = true;
    return out;
  }
  out.loose_end = out.loose.back();
  Chain none;
  none.stages.resize(replicas.size());
  for (std::size_t s = 0; s < replicas.size(); ++s) {
    out.reduces.push_back(costs_.reduce_line(cuts_.fine().back().low.untied, replicas[s]));
    Chain computed = none;
    computed.stages[s].parts[Least] = costs_.share(replicas[s]);
    add_chain(out, std::move(computed));
  }
  return out;
}

/// Adds events for the actions of the stages with a `number`, and for the messages between these stages, in the order
/// of ActionReplay. Each rank's list has the forward of a microbatch before its backward. False if the events are too
/// many or the lists deadlock.
bool OrderBound::add_events(Order& order, const std::vector<std::vector<Action>>& lists, const std::vector<int>& number,
                            int microbatches) {
  const std::vector<int>& replicas = order.replicas;
  std::size_t actions = 0;
  for (const auto& list : lists) actions += list.size();
  if (2 * actions > BoundLimits::kMostEvents) return false;
  // The message of each boundary and microbatch, and the latest message of each boundary and pair of ranks.
  const auto slot = [&](int stage, int microbatch) {
    return to_index(stage) * to_index(microbatches) + to_index(microbatch);
  };
  const std::vector<int> none(replicas.size() * to_index(microbatches), -1);
  std::vector<int> hop = none;
  std::vector<int> hop_back = none;
  std::vector<int> lane = none;
  std::vector<int> lane_back = none;
  order.last.assign(lists.size(), -1);
  order.stage_of_rank.assign(lists.size(), -1);
  const auto add = [&](Event::Kind kind, int stage, int first, int second) {
    order.events.push_back({{first, second}, stage, kind});
    return to_int(order.events.size()) - 1;
  };
  const int last_stage = to_int(replicas.size()) - 1;
  // Adds a message over the boundary after `stage` that waits for the event `sent`.
  const auto send = [&](Event::Kind kind, int stage, int microbatch, int sent, std::vector<int>& lanes) {
    const int cycle = std::min(microbatches, std::lcm(replicas[to_index(stage)], replicas[to_index(stage) + 1]));
    int& before = lanes[slot(stage, microbatch % cycle)];
    before = add(kind, stage, sent, before);
    return before;
  };
  return replay_lists(lists, [&](std::size_t rank, const Action& action) {
    const int s = number[to_index(action.stage)];
    if (s < 0) return true;
    order.stage_of_rank[rank] = s;
    const int m = action.microbatch;
    const bool is_back = action.kind == ActionKind::Backward;
    const int from = is_back ? s + 1 : s - 1;  // the stage that sends the message
    int arrived = -1;
    if (from >= 0 && from <= last_stage) {
      arrived = is_back ? hop_back[slot(s, m)] : hop[slot(from, m)];
      if (arrived < 0) return false;
    }
    int& last = order.last[rank];
    last = add(is_back ? Event::Kind::Back : Event::Kind::Forward, s, last, arrived);
    if (is_back && s > 0) hop_back[slot(s - 1, m)] = send(Event::Kind::HopBack, s - 1, m, last, lane_back);
    if (!is_back && s < last_stage) hop[slot(s, m)] = send(Event::Kind::Hop, s, m, last, lane);
    return true;
  });
}

/// One round: finds the best weights of the known chains against the known cuts, then the best cuts against these
/// weights, then the longest chain for these cuts.
void OrderBound::improve(Order& order) const {
  play(order);
  const double all = std::accumulate(order.chain_sum.begin(), order.chain_sum.end(), 0.0);
  Chain mean;
  mean.stages.resize(order.replicas.size());
  for (std::size_t p = 0; p < order.chains.size(); ++p) {
    const double weight = order.chain_sum[p] / all;
    if (weight <= 0) continue;
    mean.constant += weight * order.chains[p].constant;
    for (std::size_t s = 0; s < mean.stages.size(); ++s) {
      const StageShare& share = order.chains[p].stages[s];
      for (std::size_t k = 0; k < Parts; ++k) mean.stages[s].parts[k] += weight * share.parts[k];
      mean.stages[s].reduce += weight * share.reduce;
      mean.stages[s].hop += weight * share.hop;
      mean.stages[s].hop_back += weight * share.hop_back;
    }
  }
  Begins begins;
  const Seconds low = least(order, mean, begins);
  bool has_more = low > order.low * (1 + BoundLimits::kLarger);
  order.low = std::max(order.low, low);
  has_more = follow(order, begins) || has_more;
  has_more = follow(order, mean_begins(order)) || has_more;
  order.idle = has_more ? 0 : order.idle + 1;
  order.done = order.low * (1 + BoundLimits::kNear) >= order.high || order.idle >= BoundLimits::kIdleRounds;
}

/// Adds the cuts and the longest chain for these cuts, if either is new.
bool OrderBound::follow(Order& order, const Begins& begins) const {
  if (std::ranges::find(order.begins, begins) != order.begins.end()) return false;
  Seconds time;
  Chain chain = longest(order, begins, time);
  if (time < order.high) {
    order.high = time;
    order.best = order.begins.size();
  }
  if (std::ranges::find(order.chains, chain) == order.chains.end()) add_chain(order, std::move(chain));
  add_begins(order, begins);
  return true;
}

/// The cuts nearest to the weighted mean of the known cuts, by the computation before each cut.
OrderBound::Begins OrderBound::mean_begins(const Order& order) const {
  const double all = std::accumulate(order.begins_sum.begin(), order.begins_sum.end(), 0.0);
  const std::vector<Seconds>& computed = low_.times[Least];
  Begins out(order.replicas.size() - 1);
  for (std::size_t s = 0; s < out.size(); ++s) {
    Seconds mean;
    for (std::size_t k = 0; k < order.begins.size(); ++k)
      mean += (all > 0 ? order.begins_sum[k] / all : 1.0 / static_cast<double>(order.begins.size())) *
              computed[order.begins[k][s]];
    const std::size_t first = s == 0 ? first_ : out[s - 1] + 1;
    const std::size_t last = last_ - (out.size() - 1 - s);
    const auto from = computed.begin() + static_cast<std::ptrdiff_t>(first);
    const auto to = computed.begin() + static_cast<std::ptrdiff_t>(last);
    auto at = std::lower_bound(from, to, mean);
    if (at != from && mean - *(at - 1) < *at - mean) --at;
    out[s] = to_index(at - computed.begin());
  }
  return out;
}

/// The sums of each stage if as few nodes as possible precede the cuts.
std::vector<OrderBound::StageCosts> OrderBound::sums(const Begins& begins) const {
  std::vector<StageCosts> out(begins.size() + 1);
  for (std::size_t s = 0; s < out.size(); ++s) {
    const std::size_t from = s == 0 ? 0 : begins[s - 1];
    const std::size_t to = s == begins.size() ? cuts_.fine().size() - 1 : begins[s];
    for (std::size_t k = 0; k < Parts; ++k) out[s].times[k] = low_.times[k][to] - low_.times[k][from];
    out[s].gradients = low_.gradients[to] - low_.gradients[from];
  }
  return out;
}

/// The longest chain of actions up to the end of the step, and its time.
OrderBound::Chain OrderBound::longest(const Order& order, const Begins& begins, Seconds& time) const {
  const auto stages = sums(begins);
  std::vector<Seconds> end(order.events.size());
  std::vector<int> via(order.events.size(), -1);
  for (std::size_t e = 0; e < order.events.size(); ++e) {
    const Event& event = order.events[e];
    for (const int before : event.after) {
      if (before >= 0 && (via[e] < 0 || end[to_index(before)] > end[e])) {
        end[e] = end[to_index(before)];
        via[e] = before;
      }
    }
    const auto s = to_index(event.stage);
    switch (event.kind) {
      case Event::Kind::Forward:
        end[e] += stages[s].times[Forward];
        break;
      case Event::Kind::Back:
        end[e] += stages[s].times[Back];
        break;
      case Event::Kind::Hop:
        end[e] += hop_[begins[s]];
        break;
      case Event::Kind::HopBack:
        end[e] += hop_back_[begins[s]];
        break;
    }
  }
  time = Seconds(-1);
  std::size_t last = 0;
  bool reduces = false;
  for (std::size_t rank = 0; rank < order.last.size(); ++rank) {
    if (order.last[rank] < 0) continue;
    const auto s = to_index(order.stage_of_rank[rank]);
    const Seconds hidden = costs_.buckets_are_hidden() ? stages[s].times[Back] : Seconds(0);
    const Seconds reduce = order.reduces[s].fixed + order.reduces[s].per_byte * stages[s].gradients - hidden;
    const Seconds ended = end[to_index(order.last[rank])] + stages[s].times[Update] + std::max(Seconds(0), reduce);
    if (ended <= time) continue;
    time = ended;
    last = rank;
    reduces = reduce > Seconds(0);
  }
  Chain out;
  out.stages.resize(order.replicas.size());
  StageShare& last_stage = out.stages[to_index(order.stage_of_rank[last])];
  last_stage.parts[Update] += 1;
  if (reduces) {
    const ReduceLine& line = order.reduces[to_index(order.stage_of_rank[last])];
    last_stage.reduce += line.per_byte;
    if (costs_.buckets_are_hidden()) last_stage.parts[Back] -= 1;
    out.constant = line.fixed;
  }
  for (int e = order.last[last]; e >= 0; e = via[to_index(e)]) {
    const Event& event = order.events[to_index(e)];
    StageShare& share = out.stages[to_index(event.stage)];
    switch (event.kind) {
      case Event::Kind::Forward:
        share.parts[Forward] += 1;
        break;
      case Event::Kind::Back:
        share.parts[Back] += 1;
        break;
      case Event::Kind::Hop:
        share.hop += 1;
        break;
      case Event::Kind::HopBack:
        share.hop_back += 1;
        break;
    }
  }
  return out;
}

Seconds OrderBound::time_of(const Chain& chain, const Begins& begins) const {
  const auto stages = sums(begins);
  Seconds out = chain.constant;
  for (std::size_t s = 0; s < stages.size(); ++s) {
    for (std::size_t k = 0; k < Parts; ++k) out += chain.stages[s].parts[k] * stages[s].times[k];
    out += chain.stages[s].reduce * stages[s].gradients;
    if (s < begins.size())
      out += chain.stages[s].hop * hop_[begins[s]] + chain.stages[s].hop_back * hop_back_[begins[s]];
  }
  return out;
}

/// The least time of the chain over all cuts; `begins` are the cuts with that time.
Seconds OrderBound::least(const Order& order, const Chain& chain, Begins& begins) const {
  const std::vector<PathCut>& cuts = cuts_.fine();
  const std::size_t stages = chain.stages.size();
  // At least so many times the costs before a cut.
  const auto times = [&](std::size_t k, double count, std::size_t cut) {
    return count * (count > 0 ? low_ : high_).times[k][cut];
  };
  const auto reduce = [&](SecondsPerByte cost, std::size_t cut) {
    return cost * (cost > SecondsPerByte(0) ? low_ : high_).gradients[cut];
  };
  Seconds out = chain.constant;
  const std::size_t end = order.loose_end ? last_ + 1 : cuts.size() - 1;
  for (std::size_t k = 0; k < Parts; ++k) {
    out += times(k, chain.stages.back().parts[k], end);
    if (order.loose_begin) out += times(k, -chain.stages.front().parts[k], first_ - 1);
  }
  out += reduce(chain.stages.back().reduce, end);
  if (order.loose_begin) out += reduce(-chain.stages.front().reduce, first_ - 1);
  begins.assign(stages - 1, 0);
  if (stages == 1) return out;
  std::vector<Seconds> before(cuts.size());  // the least sum of the terms of the cuts before
  std::vector<std::vector<int>> via(stages - 1, std::vector<int>(cuts.size(), -1));
  std::vector<Seconds> now(cuts.size());
  Seconds least_now;  // the least sum of the terms up to this cut, `at`
  int at = -1;
  for (std::size_t s = 0; s + 1 < stages; ++s) {
    const StageShare& a = chain.stages[s];
    const StageShare& b = chain.stages[s + 1];
    least_now = Seconds(std::numeric_limits<double>::infinity());
    at = -1;
    for (std::size_t j = first_; j <= last_; ++j) {
      Seconds term = a.hop * hop_[j] + a.hop_back * hop_back_[j];
      for (std::size_t k = 0; k < Parts; ++k) {
        term +=
            order.loose[s] ? times(k, a.parts[k], j) + times(k, -b.parts[k], j) : times(k, a.parts[k] - b.parts[k], j);
      }
      term += order.loose[s] ? reduce(a.reduce, j) + reduce(-b.reduce, j) : reduce(a.reduce - b.reduce, j);
      now[j] = least_now;
      via[s][j] = at;
      const Seconds sum = before[j] + term;
      if (sum < least_now) {
        least_now = sum;
        at = to_int(j);
      }
    }
    std::swap(before, now);
  }
  for (std::size_t s = stages - 1; s-- > 0;) {
    begins[s] = to_index(at);
    if (s > 0) at = via[s - 1][to_index(at)];
  }
  return out + least_now;
}

/// Regret matching (Hart and Mas-Colell 2000) with regrets of at least 0, where both sides play in turn (Tammelin
/// 2014). The weights are means over all plays; later plays count more.
void OrderBound::play(Order& order) {
  const std::size_t chains = order.chains.size();
  const std::size_t columns = order.begins.size();
  std::ranges::fill(order.chain_sum, 0.0);
  std::ranges::fill(order.begins_sum, 0.0);
  if (columns == 0) {
    std::ranges::fill(order.chain_sum, 1.0);
    return;
  }
  const auto normal = [](const std::vector<Seconds>& regret, std::vector<double>& out) {
    const Seconds sum = std::accumulate(regret.begin(), regret.end(), Seconds(0));
    for (std::size_t i = 0; i < regret.size(); ++i)
      out[i] = sum > Seconds(0) ? regret[i] / sum : 1.0 / static_cast<double>(regret.size());
  };
  std::vector<double> weights(chains);
  std::vector<double> mix(columns);
  std::vector<Seconds> value(std::max(chains, columns));
  normal(order.begins_regret, mix);
  for (int round = 1; round <= BoundLimits::kPlays; ++round) {
    Seconds mean;
    normal(order.chain_regret, weights);
    for (std::size_t p = 0; p < chains; ++p) {
      value[p] = std::inner_product(mix.begin(), mix.end(), order.times[p].begin(), Seconds(0));
      mean += weights[p] * value[p];
    }
    for (std::size_t p = 0; p < chains; ++p)
      order.chain_regret[p] = no_less_than_0(order.chain_regret[p] + value[p] - mean);
    normal(order.chain_regret, weights);
    for (std::size_t p = 0; p < chains; ++p) order.chain_sum[p] += round * weights[p];
    mean = Seconds(0);
    for (std::size_t k = 0; k < columns; ++k) {
      value[k] = Seconds(0);
      for (std::size_t p = 0; p < chains; ++p) value[k] += weights[p] * order.times[p][k];
      mean += mix[k] * value[k];
    }
    for (std::size_t k = 0; k < columns; ++k)
      order.begins_regret[k] = no_less_than_0(order.begins_regret[k] + mean - value[k]);
    normal(order.begins_regret, mix);
    for (std::size_t k = 0; k < columns; ++k) order.begins_sum[k] += round * mix[k];
  }
}

void OrderBound::add_chain(Order& order, Chain chain) const {
  std::vector<Seconds>& times = order.times.emplace_back();
  for (const Begins& begins : order.begins) times.push_back(time_of(chain, begins));
  order.chains.push_back(std::move(chain));
  order.chain_regret.emplace_back();
  order.chain_sum.push_back(0);
}

void OrderBound::add_begins(Order& order, Begins begins) const {
  for (std::size_t p = 0; p < order.chains.size(); ++p) order.times[p].push_back(time_of(order.chains[p], begins));
  order.begins.push_back(std::move(begins));
  order.begins_regret.emplace_back();
  order.begins_sum.push_back(0);
}

std::vector<Split> OrderBound::splits(std::size_t most) const {
  std::vector<const Order*> found;
  for (const auto& [stages, order] : orders_) {
    if (!order.begins.empty() && order.replicas.size() == stages.replicas.size()) found.push_back(&order);
  }
  std::ranges::stable_sort(found, {}, [](const Order* order) { return order->high; });
  found.resize(std::min(found.size(), most));
  std::vector<Split> out;
  for (const Order* order : found) out.push_back({cuts_.stage_of_node(order->begins[order->best]), order->replicas, 1});
  return out;
}

}  // namespace stagecraft::partitioner
