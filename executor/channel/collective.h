#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "executor/channel/channel.h"

// What the channels' collectives share.

namespace stagecraft::channel {

/// "all-reduce".
[[nodiscard]] const char* collective_text(Collective kind);

/// `call` as Channel::begin gets it, or nothing if it is already so: a call that is made in every step costs no memory.
/// Throws std::invalid_argument as Channel::start does, except for the device.
[[nodiscard]] std::optional<CollectiveCall> checked_collective(const Channel& channel, const CollectiveCall& call);

/// How many of `values` each of `members` parts has if they are as equal as possible, see chunk_begin.
[[nodiscard]] std::vector<std::int64_t> equal_counts(std::int64_t values, std::size_t members);

/// A checked call of one member.
[[nodiscard]] std::unique_ptr<CollectiveInProgress> start_alone(const CollectiveCall& call);

/// Begins a checked call with a message from every member to every other one, all in flight together. An all-reduce of
/// many values is a reduce-scatter and then an all-gather: each rank sends 2(n-1)/n of the bytes, as in a ring. With
/// few values, everyone sends all of them: one round, with the same sums. `hands_over`: receivers get the sender's
/// memory, which the caller may write once it has waited, so copies are sent. `channel` must outlive it.
[[nodiscard]] std::unique_ptr<CollectiveInProgress> start_pairwise(Channel& channel, const CollectiveCall& call,
                                                                   bool hands_over = false);

/// Index among the members of a checked call.
[[nodiscard]] std::size_t place_of(int rank, const CollectiveCall& call);

/// Replaces `sum` by the sum of `terms` in their order, as Channel::start describes. All are contiguous, with the same
/// number of values, dtype and device; `sum` may be one of the terms. One term is copied, whatever its dtype.
void sum_in_order(std::span<const at::Tensor> terms, const at::Tensor& sum);
/// The same for two or more terms of `count` values on the CPU, into every one of `sums`.
void sum_in_order(at::ScalarType dtype, std::span<const void* const> terms, std::span<void* const> sums,
                  std::size_t count);

/// Returns when all ranks of `channel` have called it: each sends one byte to every other one. Throws PeerError as the
/// channel does.
void one_round_barrier(Channel& channel);

}  // namespace stagecraft::channel
