#include "executor/data/sources.h"

namespace stagecraft::data {
namespace {

/// A permutation of 0..count-1 that `key` picks, value by value: four Feistel rounds over the next even power of two,
/// repeated until the value is in range again (Black & Rogaway, CT-RSA 2002).
std::uint64_t permuted(std::uint64_t index, std::uint64_t count, std::uint64_t key) {
  int half = 1;
  while (std::uint64_t{1} << (2 * half) < count) ++half;
  const std::uint64_t mask = (std::uint64_t{1} << half) - 1;
  do {
    std::uint64_t left = index >> half;
    std::uint64_t right = index & mask;
    for (std::uint64_t round = 0; round < 4; ++round) {
      const std::uint64_t next = left ^ (model::mix_seed(key, "round", round, right) & mask);
      left = right;
      right = next;
    }
    index = left << half | right;
  } while (index >= count);
  return index;
}

}  // namespace

std::uint64_t shuffled(std::uint64_t index, std::uint64_t count, std::uint64_t seed) {
  return permuted(index % count, count, model::mix_seed(seed, "epoch", index / count));
}

}  // namespace stagecraft::data
