#include "partitioner/costs/lattice.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>
#include <random>
#include <set>
#include <stdexcept>

namespace stagecraft::partitioner {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

Dag random_dag(std::mt19937& random, int nodes) {
  Dag out{nodes, {}};
  const unsigned density = 1 + static_cast<unsigned>(random() % 5);
  for (int a = 0; a < nodes; ++a) {
    for (int b = a + 1; b < nodes; ++b) {
      if (random() % 6 < density) out.edges.emplace_back(a, b);
    }
  }
  return out;
}

/// Down-sets by trying all subsets, as bits.
std::set<unsigned> all_downsets(const Dag& graph) {
  std::set<unsigned> out;
  for (unsigned set = 0; set < 1u << graph.nodes; ++set) {
    const bool closed = std::ranges::all_of(
        graph.edges, [&](const auto& edge) { return !(set >> edge.second & 1) || (set >> edge.first & 1); });
    if (closed) out.insert(set);
  }
  return out;
}

unsigned bits_of(const Lattice& lattice, std::uint32_t set) {
  unsigned out = 0;
  for (const int node : lattice.members(set)) out |= 1u << node;
  return out;
}

/// A chain has a set more than it has nodes.
TEST(Lattice, OfAChainIsAChain) {
  const Lattice lattice = *Lattice::of({3, {{0, 1}, {1, 2}}}, 4);
  EXPECT_EQ(lattice.count(), 4u);
  EXPECT_THAT(lattice.covers(0), IsEmpty());
  for (std::uint32_t set = 1; set <= 3; ++set)
    EXPECT_THAT(lattice.covers(set), ElementsAre(Lattice::Cover{set - 1, static_cast<int>(set) - 1}));
  EXPECT_THAT(lattice.members(3, 1), ElementsAre(1, 2));
}

/// Three nodes without edges have 2^3 sets; the limit counts the empty set.
TEST(Lattice, HasALimit) {
  EXPECT_EQ(Lattice::of({3, {}}, 8)->count(), 8u);
  EXPECT_EQ(Lattice::of({3, {}}, 7), std::nullopt);
}

TEST(Lattice, OfACycleIsAbsent) { EXPECT_EQ(Lattice::of({3, {{0, 1}, {1, 2}, {2, 1}}}, 100), std::nullopt); }

TEST(Lattice, OfNoNodesHasTheEmptySet) {
  const Lattice lattice = *Lattice::of({0, {}}, 1);
  EXPECT_EQ(lattice.count(), 1u);
  EXPECT_EQ(lattice.full(), 0u);
}

TEST(Lattice, HasEveryDownSetOnceAndLargerOnesLater) {
  for (unsigned seed = 1; seed <= 300; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    std::mt19937 random(seed);
    const Dag graph = random_dag(random, 1 + static_cast<int>(random() % 9));
    const Lattice lattice = *Lattice::of(graph, 1000);
    std::set<unsigned> sets;
    std::size_t size = 0;
    for (std::uint32_t set = 0; set < lattice.count(); ++set) {
      const std::vector<int> members = lattice.members(set);
      EXPECT_GE(members.size(), size);
      size = members.size();
      sets.insert(bits_of(lattice, set));
      // The covers are the maximal members: those without a consumer in the set.
      std::set<int> maximal(members.begin(), members.end());
      for (const auto& [from, to] : graph.edges) {
        if (bits_of(lattice, set) >> to & 1) maximal.erase(from);
      }
      std::set<int> covers;
      for (const Lattice::Cover& cover : lattice.covers(set)) {
        covers.insert(cover.node);
        EXPECT_EQ(bits_of(lattice, cover.below), bits_of(lattice, set) & ~(1u << cover.node));
      }
      EXPECT_EQ(covers, maximal);
    }
    EXPECT_EQ(sets.size(), lattice.count());
    EXPECT_EQ(sets, all_downsets(graph));
  }
}

TEST(Lattice, OfTheReversedGraphHasTheComplements) {
  const Dag graph{4, {{0, 1}, {0, 2}, {2, 3}}};
  const Lattice lattice = *Lattice::of(reversed(graph), 100);
  std::set<unsigned> complements;
  for (std::uint32_t set = 0; set < lattice.count(); ++set) complements.insert(0xfu & ~bits_of(lattice, set));
  EXPECT_EQ(complements, all_downsets(graph));
}

TEST(DownWalk, VisitsEverySubsetOnceWithItsDifference) {
  for (unsigned seed = 1; seed <= 100; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    std::mt19937 random(seed);
    const Lattice lattice = *Lattice::of(random_dag(random, 1 + static_cast<int>(random() % 8)), 1000);
    DownWalk walk(lattice);
    for (std::uint32_t set = 0; set < lattice.count(); ++set) {
      unsigned difference = 0;
      std::vector<int> added;
      std::set<unsigned> found;
      walk.each_subset(
          set,
          [&](int node) {
            difference |= 1u << node;
            added.push_back(node);
          },
          [&](int node) {
            EXPECT_EQ(added.back(), node);
            added.pop_back();
            difference &= ~(1u << node);
          },
          [&](std::uint32_t below) {
            EXPECT_TRUE(found.insert(bits_of(lattice, below)).second);
            EXPECT_EQ(bits_of(lattice, below), bits_of(lattice, set) & ~difference);
            return Descend::Yes;
          });
      EXPECT_EQ(difference, 0u);
      std::set<unsigned> subsets;
      for (std::uint32_t other = 0; other < set; ++other) {
        const unsigned bits = bits_of(lattice, other);
        if ((bits & ~bits_of(lattice, set)) == 0) subsets.insert(bits);
      }
      EXPECT_EQ(found, subsets);
    }
  }
}

/// Visits are those of the subsets with at most two nodes less, and of the first ones beyond.
TEST(DownWalk, DoesNotDescendWhereTheVisitorDeclines) {
  const Lattice lattice = *Lattice::of({4, {{0, 1}, {1, 2}, {2, 3}}}, 10);
  DownWalk walk(lattice);
  int less = 0;
  std::vector<std::uint32_t> visited;
  walk.each_subset(
      4, [&](int) { ++less; }, [&](int) { --less; },
      [&](std::uint32_t below) {
        visited.push_back(below);
        return less < 2 ? Descend::Yes : Descend::No;
      });
  EXPECT_THAT(visited, ElementsAre(3u, 2u));
}

TEST(Contract, JoinsWhatStaysTogetherAndItsCycles) {
  // 0 -> 1 -> 2 -> 3, and 4 beside them. Joining 0 and 2 puts 1 on a cycle with them.
  const Contraction joined = contract({5, {{0, 1}, {1, 2}, {2, 3}}}, {{2, 0}});
  EXPECT_THAT(joined.class_of_node, ElementsAre(0, 0, 0, 1, 2));
  EXPECT_EQ(joined.dag, (Dag{3, {{0, 1}}}));
}

TEST(Contract, NumbersTheClassesInTopologicalOrder) {
  const Contraction same = contract({3, {{2, 0}, {0, 1}, {2, 1}, {2, 0}}});
  EXPECT_THAT(same.class_of_node, ElementsAre(1, 2, 0));
  EXPECT_EQ(same.dag, (Dag{3, {{0, 1}, {0, 2}, {1, 2}}}));
}

TEST(Contract, NamesANodeThatDoesNotExist) {
  EXPECT_THROW((void)contract({2, {{0, 2}}}), std::invalid_argument);
  EXPECT_THROW((void)contract({2, {}}, {{-1, 0}}), std::invalid_argument);
}

/// 0 -> 1 -> 2 -> 3, 1 -> 4: with 3, 2 and 4 free, all three join 1; 0 has work.
TEST(FreeLeaves, JoinTheirOnlyNeighbourAgainAndAgain) {
  const Dag graph{5, {{0, 1}, {1, 2}, {2, 3}, {1, 4}}};
  const auto pairs = free_leaves(graph, {false, false, true, true, true});
  const Contraction joined = contract(graph, pairs);
  EXPECT_THAT(joined.class_of_node, ElementsAre(0, 1, 1, 1, 1));
  EXPECT_THAT(free_leaves(graph, {false, true, true, false, false}), IsEmpty());
}

TEST(CutCosts, EqualThoseCountedAnew) {
  for (unsigned seed = 1; seed <= 200; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    std::mt19937 random(seed);
    const int nodes = 2 + static_cast<int>(random() % 7);
    const Dag graph = random_dag(random, nodes);
    std::vector<CutTensor> tensors;
    for (int node = 0; node < nodes; ++node) {
      CutTensor tensor{node, {}, Seconds(static_cast<double>(1 + random() % 100))};
      for (const auto& [from, to] : graph.edges) {
        if (from == node) tensor.consumers.push_back(to);
      }
      if (!tensor.consumers.empty()) tensors.push_back(tensor);
    }
    CutCosts costs(nodes, tensors);
    std::vector<int> order(static_cast<std::size_t>(nodes));
    std::iota(order.begin(), order.end(), 0);
    std::shuffle(order.begin(), order.end(), random);
    std::set<int> inside;
    const auto check = [&] {
      Seconds incoming;
      Seconds outgoing;
      for (const CutTensor& tensor : tensors) {
        const auto readers = std::ranges::count_if(tensor.consumers, [&](int node) { return inside.contains(node); });
        const bool made = inside.contains(tensor.producer);
        if (!made && readers > 0) incoming += tensor.cost;
        if (made && readers < static_cast<std::ptrdiff_t>(tensor.consumers.size())) outgoing += tensor.cost;
      }
      EXPECT_EQ(costs.incoming(), incoming);
      EXPECT_EQ(costs.outgoing(), outgoing);
      EXPECT_EQ(costs.crossing(), incoming + outgoing);
    };
    for (const int node : order) {
      costs.add(node);
      inside.insert(node);
      check();
    }
    for (auto node = order.rbegin(); node != order.rend(); ++node) {
      costs.remove_last();
      inside.erase(*node);
      check();
    }
  }
}

}  // namespace
}  // namespace stagecraft::partitioner
