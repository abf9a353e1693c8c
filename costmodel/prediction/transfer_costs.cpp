#include "costmodel/prediction/transfer_costs.h"

#include <algorithm>
#include <functional>
#include <map>

#include "costmodel/index.h"
#include "costmodel/prediction/device_match.h"

namespace stagecraft {
namespace {

/// Latency and transmission of a message of these bytes, tensor by tensor.
Transfer transfer_cost(const Link& link, const Boundary& boundary, bool gradient) {
  Transfer out;
  for (const BoundaryTensor& tensor : boundary.tensors) {
    if (gradient && !tensor.gradient) continue;
    const Seconds alone = transfer_time(link, tensor.bytes);
    const Seconds latency = std::min(alone, link.latency);
    out.latency += latency;
    out.transmission += alone - latency;
  }
  return out;
}

/// Processor time of a message of these bytes at one end, tensor by tensor.
Handling handling_of(const Curve& curve, const Boundary& boundary, bool gradient) {
  Handling out;
  if (curve.points.empty()) return out;
  for (const BoundaryTensor& tensor : boundary.tensors) {
    if ((gradient && !tensor.gradient) || tensor.bytes <= Bytes(0)) continue;
    const Seconds all = interpolate(curve, tensor.bytes);
    const Seconds fixed = std::min(all, curve.points.front().time);
    out.fixed += fixed;
    out.streaming += all - fixed;
  }
  return out;
}

/// The processors of each host that the ranks of a plan compute on; 0: unknown, or they compute on GPUs.
int shared_processors(const Topology& topology) {
  const MeasuredDevice device = described_device(topology);
  return device.kind == DeviceKind::Processor ? device.host_processors : 0;
}

/// Processors that a computation of the graph needs.
int threads_of(const Graph& graph) { return graph.threads > 0 ? to_int(graph.threads) : 1; }

/// The most ranks of the plan that one host has.
int most_on_one_host(const BoundPlan& plan, const Topology& topology) {
  std::map<int, int> ranks;
  int most = 0;
  for (const int host : hosts_of(plan, topology)) most = std::max(most, ++ranks[host]);
  return most;
}

}  // namespace

std::vector<int> hosts_of(const BoundPlan& plan, const Topology& topology) {
  std::vector<int> out;
  for (const RankRole& role : plan.ranks()) out.push_back(group_below(topology, 1, role.device));
  return out;
}

MessageThread message_thread(const BoundPlan& plan, const Topology& topology) {
  const std::vector<int> hosts = hosts_of(plan, topology);
  const bool several = std::adjacent_find(hosts.begin(), hosts.end(), std::not_equal_to<>()) != hosts.end();
  const auto& processing = topology.levels.front().link.processing;
  return !several && processing ? processing->thread : MessageThread::Separate;
}

bool charges_messages(const Graph& graph, const BoundPlan& plan, const Topology& topology) {
  const int processors = shared_processors(topology);
  if (processors == 0) return false;
  if (message_thread(plan, topology) == MessageThread::Own) return true;
  return most_on_one_host(plan, topology) * (threads_of(graph) + 1) > processors;
}

HostInput host_input(const Graph& graph, const Topology& topology, const BoundPlan& plan, bool charged) {
  HostInput out;
  out.slowdown = graph.slowdown;
  out.processors = shared_processors(topology);
  if (out.processors > 0 || !graph.slowdown.empty()) out.of_rank = hosts_of(plan, topology);
  out.compute_processors = threads_of(graph);
  out.message_thread = message_thread(plan, topology);
  if (charged && topology.levels.front().link.processing) out.wake = kWakeOnCrowdedHost;
  return out;
}

std::string message_processing_assumption(const Graph& graph, const Topology& topology, const BoundPlan& plan) {
  const int processors = shared_processors(topology);
  const bool take_turns = processors > 0 && most_on_one_host(plan, topology) * threads_of(graph) > processors;
  if (plan.plan().boundaries.empty() || !take_turns) return "";
  if (topology.levels.front().link.processing) return "";
  return std::to_string(most_on_one_host(plan, topology)) + " ranks share " + std::to_string(processors) +
         (processors == 1 ? " processor" : " processors") +
         "; messages are assumed to take no processor time, because the topology does not say how much";
}

TransferCosts::TransferCosts(const BoundPlan& plan, const Topology& topology, bool charged, bool free)
    : topology_(topology) {
  for (const RankRole& role : plan.ranks()) device_of_rank_.push_back(role.device);
  const int devices = device_count(topology);
  for (int level = 0; level < to_int(topology.levels.size()); ++level) {
    first_port_.push_back(ports_);
    ports_ += 2 * (group_below(topology, level, devices - 1) + 1);
    const Link& link = topology.levels[to_index(level)].link;
    for (const bool gradient : {false, true}) {
      auto& row = by_level_[gradient].emplace_back();
      for (const Boundary& boundary : plan.plan().boundaries) {
        Transfer& cost = row.emplace_back(free ? Transfer{} : transfer_cost(link, boundary, gradient));
        if (free || !charged || !link.processing) continue;
        cost.sender = handling_of(link.processing->sender, boundary, gradient);
        cost.receiver = handling_of(link.processing->receiver, boundary, gradient);
      }
    }
  }
}

Transfer TransferCosts::operator()(int boundary, bool gradient, int from_rank, int to_rank) const {
  const int from = device_of_rank_[to_index(from_rank)];
  const int to = device_of_rank_[to_index(to_rank)];
  const int level = joining_level(topology_, from, to);
  Transfer out = by_level_[gradient][to_index(level)][to_index(boundary)];
  out.egress = first_port_[to_index(level)] + 2 * group_below(topology_, level, from);
  out.ingress = first_port_[to_index(level)] + 2 * group_below(topology_, level, to) + 1;
  return out;
}

}  // namespace stagecraft
