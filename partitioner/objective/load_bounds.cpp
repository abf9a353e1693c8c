#include "partitioner/objective/load_bounds.h"

#include <algorithm>
#include <limits>

#include "costmodel/index.h"

namespace stagecraft::partitioner {
namespace {

constexpr Seconds kInfinite(std::numeric_limits<double>::infinity());

}  // namespace

LoadBounds bounds_of(const LoadProblem& problem) {
  LoadBounds out;
  for (const LoadProblem::Node& node : problem.nodes) {
    const bool counts = problem.cpus == 0 || (node.on_accelerator && node.cpu > Seconds(0));
    const Seconds work = counts ? node.accelerator : Seconds(0);
    if (problem.cpus > 0 && work > Seconds(0)) out.cpu_share = std::max(out.cpu_share, node.accelerator / node.cpu);
    out.work.push_back(work);
    out.all += work;
  }
  return out;
}

Seconds least_slowest(const LoadProblem& problem, bool replicated) {
  std::vector<const LoadProblem::Node*> nodes;
  Seconds largest;
  for (const LoadProblem::Node& node : problem.nodes) {
    nodes.push_back(&node);
    const bool on_accelerator = node.on_accelerator && problem.accelerators > 0;
    const Seconds here = on_accelerator ? node.accelerator : kInfinite;
    const Seconds there = problem.cpus > 0 ? node.cpu : kInfinite;
    largest = std::max(largest, std::min(here, there));
  }
  if (problem.cpus == 0) {
    Seconds all;
    for (const LoadProblem::Node* node : nodes) all += node->accelerator;
    return std::max(all / problem.accelerators, replicated ? Seconds(0) : largest);
  }
  // The most accelerator time for each second of a CPU first; what only a CPU can run before all.
  const auto gain = [](const LoadProblem::Node* node) {
    if (!node->on_accelerator || node->cpu == Seconds(0)) return std::numeric_limits<double>::infinity();
    return node->accelerator / node->cpu;
  };
  std::ranges::stable_sort(nodes, std::ranges::greater{}, gain);
  const auto fits = [&](Seconds time) {
    Seconds cpu = time * problem.cpus;
    Seconds accelerator = time * problem.accelerators;
    for (const LoadProblem::Node* node : nodes) {
      const double share = node->cpu <= cpu ? 1 : cpu / node->cpu;
      cpu -= share * node->cpu;
      if (share == 1) continue;
      if (!node->on_accelerator) return false;
      accelerator -= (1 - share) * node->accelerator;
      if (accelerator < Seconds(0)) return false;
    }
    return true;
  };
  Seconds high;
  for (const LoadProblem::Node& node : problem.nodes) high += std::max(node.cpu, node.accelerator);
  Seconds low;
  for (int step = 0; step < 60 && low < high; ++step) {
    const Seconds middle = low + (high - low) / 2;
    (fits(middle) ? high : low) = middle;
  }
  return std::max(low * (1 - kLoadRounding), replicated ? Seconds(0) : largest);
}

Seconds first_bound(const LoadProblem& problem, const LoadObjective& objective) {
  const Seconds slowest = least_slowest(problem, objective.replicated);
  Seconds all;
  for (const LoadProblem::Node& node : problem.nodes) all += node.accelerator;
  switch (objective.combination) {
    case Combination::Slowest:
      return slowest;
    case Combination::FlushSum: {
      const Seconds sum = objective.replicated ? all / problem.accelerators : all;
      return (problem.cpus > 0 ? Seconds(0) : sum * (1 - kLoadRounding)) + (objective.microbatches - 1) * slowest;
    }
    case Combination::FlushEven: {
      Seconds least = kInfinite;
      LoadProblem fewer;
      fewer.nodes = problem.nodes;
      for (int stages = 1; stages <= problem.accelerators; ++stages) {
        fewer.accelerators = stages;
        least = std::min(least, (objective.microbatches + stages - 1) * least_slowest(fewer, false));
      }
      return least;
    }
  }
  return Seconds(0);
}

}  // namespace stagecraft::partitioner
