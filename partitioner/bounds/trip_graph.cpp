// What TripBound knows before any question: the graph of the nodes with work, its down-sets and its heaviest path.

#include <algorithm>
#include <limits>
#include <map>
#include <ranges>

#include "costmodel/index.h"
#include "partitioner/bounds/bound_limits.h"
#include "partitioner/bounds/trip_bound.h"
#include "partitioner/costs/heaviest_path.h"

namespace stagecraft::partitioner {
namespace {

bool has_work(const NodeCosts& node) {
  return node.least > Seconds(0) || node.forward > Seconds(0) || node.update > Seconds(0) || node.gradients > Bytes(0);
}

/// Whether links differ, and devices are so few that the bound can tell all numbers of them apart.
bool order_matters(const PipelineCosts& costs) {
  return costs.levels() > 1 && costs.devices() < BoundLimits::kEveryDevice;
}

}  // namespace

std::unique_ptr<TripBound> TripBound::of(const PipelineCosts& costs, std::optional<Bytes> limit,
                                         std::size_t most_sets) {
  if (!costs.waits()) return nullptr;
  // In order, every stage takes devices, even without work; and it is known what a stage receives.
  const bool keeps_all =
      (order_matters(costs) || limit) && Lattice::of(reversed(costs.dag()), BoundLimits::kMostWholeSets);
  std::vector<int> kept;
  std::vector<int> number(to_index(costs.dag().nodes), -1);
  for (int v = 0; v < costs.dag().nodes; ++v) {
    if (!keeps_all && !has_work(costs.node(v))) continue;
    number[to_index(v)] = to_int(kept.size());
    kept.push_back(v);
  }
  if (kept.empty()) return nullptr;
  // The edges that reach each node from kept nodes. If nodes between were left out, at least the smallest of the
  // messages on the way must be sent.
  std::vector<std::map<int, KeptEdge>> reach(to_index(costs.dag().nodes));
  std::vector<KeptEdge> edges;
  for (int v = 0; v < costs.dag().nodes; ++v) {
    std::map<int, KeptEdge>& here = reach[to_index(v)];
    const auto add = [&](KeptEdge edge) {
      edge.to = number[to_index(v)];
      const auto [it, fresh] = here.emplace(edge.from, edge);
      if (fresh) return;
      it->second.forward = std::max(it->second.forward, edge.forward);
      it->second.back = std::max(it->second.back, edge.back);
      it->second.port = std::max(it->second.port, edge.port);
      it->second.returns = it->second.returns || edge.returns;
    };
    for (const int value_read : costs.read_by(v)) {
      const CrossingValue& value = costs.values()[to_index(value_read)];
      const bool returns = value.gradient && !costs.schedule().splits_backward;
      const KeptEdge last{number[to_index(value.producer)],        0,       value.least_forward,
                          returns ? value.least_back : Seconds(0), returns, value.port};
      if (last.from >= 0) {
        add(last);
        continue;
      }
      for (KeptEdge first : reach[to_index(value.producer)] | std::views::values) {
        first.forward = std::min(first.forward, last.forward);
        first.port = std::min(first.port, last.port);
        first.returns = first.returns && returns;
        first.back = first.returns ? std::min(first.back, last.back) : Seconds(0);
        add(first);
      }
    }
    if (number[to_index(v)] < 0) continue;
    for (const KeptEdge& edge : here | std::views::values) edges.push_back(edge);
  }
  Dag dag{to_int(kept.size()), {}};
  for (const KeptEdge& edge : edges) dag.edges.emplace_back(edge.to, edge.from);
  std::optional<Lattice> lattice = Lattice::of(dag, most_sets);
  if (!lattice) return nullptr;
  std::unique_ptr<TripBound> out(new TripBound(costs, limit, std::move(kept), std::move(edges), std::move(*lattice)));
  const double sets = static_cast<double>(out->lattice_.count());
  const double places = 1.0 + std::min(out->useful_devices_, BoundLimits::kEveryDevice);
  if (sets * places > BoundLimits::kMostEntries) return nullptr;
  if (sets * sets / 4 * places * static_cast<double>(out->replicas_.size()) > BoundLimits::kMostSteps) return nullptr;
  return out;
}

TripBound::TripBound(const PipelineCosts& costs, std::optional<Bytes> limit, std::vector<int> kept,
                     std::vector<KeptEdge> edges, Lattice lattice)
    : costs_(costs),
      limit_(limit),
      kept_(std::move(kept)),
      edges_(std::move(edges)),
      lattice_(std::move(lattice)),
      walk_(lattice_) {
  most_replicas_ = std::min(costs.devices(), costs.microbatches());
  replicas_ = replica_ranges(most_replicas_, costs.microbatches());
  const double useful = 1.0 * costs.dag().nodes * most_replicas_;
  useful_devices_ = static_cast<int>(std::min<double>(costs.devices(), useful));
  alternates_ = costs.schedule().alternates;
  if (limit && alternates_) {
    const std::size_t entries = lattice_.count() * to_index(std::min(useful_devices_, BoundLimits::kEveryDevice) + 1);
    most_ways_ = std::clamp<std::size_t>(BoundLimits::kMostWayEntries / entries, 1, BoundLimits::kMostWays);
  }
  find_path();
  find_begins();
  if (is_whole() && order_matters(costs)) find_levels();
}

/// Finds the path with the most computation: a stage of this path waits for the stages before and gets gradients back
/// along the path.
void TripBound::find_path() {
  std::vector<Seconds> weights;
  for (const int v : kept_) weights.push_back(costs_.node(v).forward + costs_.node(v).least_return);
  std::vector<std::vector<Arc>> incoming(kept_.size());
  for (std::size_t e = 0; e < edges_.size(); ++e) {
    const KeptEdge& edge = edges_[e];
    if (costs_.returns() && !edge.returns) continue;
    incoming[to_index(edge.to)].push_back({edge.from, to_int(e), edge.forward, edge.back});
  }
  const HeaviestPath path = heaviest_path(weights, incoming);
  path_ = path.nodes;
  for (const int e : path.arcs) hops_.push_back(edges_[to_index(e)]);
  place_.assign(kept_.size(), -1);
  for (std::size_t i = 0; i < path_.size(); ++i) place_[to_index(path_[i])] = to_int(i);
}

/// Finds what the messages of the path take over each level.
void TripBound::find_levels() {
  for (int r = 1; r <= most_replicas_; ++r) each_.push_back({r, r, (costs_.microbatches() + r - 1) / r});
  level_at_.assign(to_index(costs_.devices()), 0);
  for (int device = 1; device < costs_.devices(); ++device)
    level_at_[to_index(device)] = costs_.level_of(device - 1, device);
  for (const KeptEdge& hop : hops_) {
    std::vector<PathHop>& at = hops_at_.emplace_back();
    for (std::size_t level = 0; level < costs_.levels(); ++level)
      at.push_back(path_hop(costs_, kept_[to_index(hop.from)], kept_[to_index(hop.to)], level));
  }
}

/// Finds the longest way through the nodes to each set: a stage that begins in the set holds one of its ready nodes.
void TripBound::find_begins() {
  struct Arrival {
    Seconds forward, back;
  };
  std::vector<Arrival> way(kept_.size());
  std::vector<Arrival> ready(kept_.size());
  for (const KeptEdge& edge : edges_) {  // by ascending destination
    const NodeCosts& from = costs_.node(kept_[to_index(edge.from)]);
    const Arrival& there = way[to_index(edge.from)];
    Arrival& here = way[to_index(edge.to)];
    Arrival& message = ready[to_index(edge.to)];
    here.forward = std::max(here.forward, there.forward + from.forward);
    message.forward = std::max(message.forward, there.forward + from.forward + edge.forward);
    if (!edge.returns) continue;
    here.back = std::max(here.back, there.back + from.least_return);
    message.back = std::max(message.back, there.back + from.least_return + edge.back);
  }
  begin_.assign(lattice_.count(), {});
  // If nodes were left out, such nodes may begin or end a stage, so nothing is known of what it receives.
  const Bytes unknown(is_whole() ? std::numeric_limits<std::int64_t>::max() : 0);
  received_.assign(lattice_.count(), unknown);
  incoming_ = outgoing_ = received_;
  path_at_.assign(lattice_.count(), to_int(path_.size()));
  for (std::uint32_t set = 1; set < lattice_.count(); ++set) {
    Begin& begin = begin_[set];
    begin = {kNever, kNever};
    for (const Lattice::Cover& cover : lattice_.covers(set)) {
      const Arrival& here = ready[to_index(cover.node)];
      begin.forward = std::min(begin.forward, here.forward);
      begin.both = std::min(begin.both, here.forward + here.back);
      const NodeCosts& costs = costs_.node(kept_[to_index(cover.node)]);
      received_[set] = std::min(received_[set], costs.received);
      incoming_[set] = std::min(incoming_[set], costs.incoming);
      outgoing_[cover.below] = std::min(outgoing_[cover.below], costs.outgoing);
      const int place = place_[to_index(cover.node)];
      path_at_[set] = std::min(path_at_[set], place >= 0 ? place : path_at_[cover.below]);
    }
  }
}

}  // namespace stagecraft::partitioner
