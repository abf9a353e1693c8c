#include "partitioner/search/chain_spaces.h"

#include <algorithm>
#include <bit>

#include "costmodel/index.h"
#include "partitioner/search/enumeration.h"
#include "partitioner/search/least_time.h"

namespace stagecraft::partitioner {
namespace {

/// More down-sets than this are not enumerated.
constexpr std::size_t kMostSets = 1'500'000;
/// Entries of all tables of a search.
constexpr std::size_t kMostEntries = 60'000'000;
constexpr int kMostChunks = 8;

}  // namespace

ChainSpaces::ChainSpaces(const SearchContext& context) : context_(context) {
  make_lattice();
  const Constraints& constraints = context.constraints;
  SearchSpace space;
  space.limit = context.countable();
  space.stages = constraints.stages;
  space.replicas = constraints.replicas;
  const int chunks = constraints.chunks.value_or(1);
  if (chunks == 1) add(space);
  const bool chunked = constraints.plan.listed.empty() && context.costs.schedule().chunked;
  if (chunked || chunks != 1) add_chunks(std::move(space));
}

void ChainSpaces::make_lattice() {
  const Dag& dag = context_.costs.dag();
  lattice_ = Lattice::of(reversed(dag), kMostSets);
  if (lattice_) return;
  is_whole_ = false;
  Dag line{dag.nodes, {}};
  for (int node = 1; node < line.nodes; ++node) line.edges.emplace_back(node, node - 1);
  lattice_ = Lattice::of(line, kMostSets);
}

void ChainSpaces::add(const SearchSpace& space) {
  const std::size_t rows = space.stages ? to_index(*space.stages) + 1 : 1;
  if (rows * lattice_->count() > kMostEntries) {
    is_whole_ = false;
    return;
  }
  spaces_.push_back(std::make_unique<ChainSearch>(context_.costs, *lattice_, space, context_.time.stop()));
}

void ChainSpaces::add_chunks(SearchSpace space) {
  const Constraints& constraints = context_.constraints;
  if (std::ranges::any_of(space.replicas, [](int r) { return r != 1; })) {
    is_whole_ = false;
    return;
  }
  if (!space.replicas.empty()) space.stages = to_int(space.replicas.size());
  space.replicas.clear();
  for (int chunks = 2; chunks <= std::max(kMostChunks, constraints.chunks.value_or(1)); ++chunks) {
    if (constraints.chunks ? chunks != *constraints.chunks : !std::has_single_bit(static_cast<unsigned>(chunks)))
      continue;
    space.chunks = chunks;
    const std::optional<int> wanted = constraints.stages;
    for (int positions = 1; positions <= context_.costs.devices(); ++positions) {
      const int stages = positions * chunks;
      if (stages > context_.costs.dag().nodes || (wanted && stages != *wanted)) continue;
      if (constraints.plan.microbatches % positions != 0) continue;
      space.stages = stages;
      add(space);
    }
  }
}

Seconds ChainSpaces::least(Seconds low, Seconds high) {
  if (!is_whole_) return low;
  return least_time(low, high, kBoundPrecision, 0.5, [&](Seconds time) -> std::optional<bool> {
    for (const auto& space : spaces_) {
      const std::optional<bool> refuted = space->refutes(time);
      if (!refuted || !*refuted) return refuted;
    }
    return true;
  });
}

Seconds ChainSpaces::enumerate_all(Seconds low, Seconds done) {
  return enumerate(context_, low, done, is_whole_, [&](Seconds time) {
    for (const auto& space : spaces_) {
      const std::optional<bool> refuted = space->refutes(time);
      if (!refuted) return false;
      if (*refuted) continue;
      if (!predict_up_to(context_, time, [&](const auto& visit) { return space->visit_splits(time, visit); }))
        return false;
    }
    return true;
  });
}

}  // namespace stagecraft::partitioner
