#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "costmodel/simulation/simulation_input.h"
#include "costmodel/units.h"

namespace stagecraft {

/// Times of one microbatch on each stage of a pipeline without replicas.
struct StageTimes {
  std::vector<Seconds> forward;
  std::vector<Seconds> backward;
};

/// Step time of GPipe: sum F + (M-1) max F + sum B + (M-1) max B + 2 (p-1) hop. Exact for any stages and hops that do
/// not occupy the links. Source: derived by counting the critical path; checked against the event simulation.
[[nodiscard]] Seconds gpipe_time(const StageTimes& stages, int microbatches, Seconds hop);

/// Step time of 1F1B with flush, p equal stages. hop = 0: (M+p-1)(F+B), exact.
/// hop > 0: (M/p)(p(F+B) + 2(p-1)hop) + (p-1)(F+B) + 2(p-2)hop, exact for p >= 2 if p divides M.
[[nodiscard]] Seconds one_forward_one_backward_time(Seconds forward, Seconds backward, int stages, int microbatches,
                                                    Seconds hop);

// Of schedules with several stages on a device, all times are of a device's v chunks together, which are alike.

/// Step time of interleaved 1F1B and of breadth-first schedules: M(F+B) + (p-1)(F+B)/v. Exact for equal stages, free
/// hops, p dividing M.
[[nodiscard]] Seconds interleaved_time(Seconds forward, Seconds backward, int devices, int chunks, int microbatches);

/// Step time of ZB-H1: M(F+B+W) + (p-1)(F+B-W), B the input gradient and W the weight gradient. Exact for equal
/// stages, free hops, p dividing M and W <= min(F, B).
[[nodiscard]] Seconds zero_bubble_h1_time(Seconds forward, Seconds backward, Seconds weight_gradient, int stages,
                                          int microbatches);

/// Step time of the interleaved zero bubble: M(F+B+W) + (p-1) max(F, B, F+B-W)/v, B the input gradient and W the weight
/// gradient. Exact for equal stages, free hops, p dividing M. Source: derived; checked against the event simulation.
[[nodiscard]] Seconds interleaved_zero_bubble_time(Seconds forward, Seconds backward, Seconds weight_gradient,
                                                   int devices, int chunks, int microbatches);

/// Step time of ZB-V with F = B = W: 3MF + (p-1)F/2. Exact for equal stages, free hops, M >= 2p-1.
[[nodiscard]] Seconds zero_bubble_v_time(Seconds forward, int devices, int microbatches);

/// Step time of V-Half with F = B = W: 3MF + (7p/2-2)F/2. Exact for equal stages, free hops, even p, M >= p.
[[nodiscard]] Seconds v_half_time(Seconds forward, int devices, int microbatches);

/// Step time of DualPipeV if a forward and a backward never run at the same time: M(F+B+W) + (p-1)(F+B-W)/2. Exact for
/// equal stages, free hops, F = B, W <= F, M >= 2p.
[[nodiscard]] Seconds dualpipev_time(Seconds forward, Seconds backward, Seconds weight_gradient, int devices,
                                     int microbatches);

/// Lower and upper end of 1F1B's step time for any stages and free hops:
/// max_s [M C_s + sum of C before s], C = F + B, and sum F + sum B + (M-1)(max F + max B).
struct Bracket {
  Seconds low;
  Seconds high;
};
[[nodiscard]] Bracket one_forward_one_backward_bracket(const StageTimes& stages, int microbatches);

/// A transformer trained with tensor parallelism, with memory as counted by Korthikanti et al. (2022).
struct TransformerShape {
  std::int64_t hidden = 0;
  std::int64_t heads = 0;
  std::int64_t layers = 0;
  std::int64_t sequence = 0;
  std::int64_t microbatch_samples = 0;
  std::int64_t tensor_parallel = 1;
  std::int64_t pipeline_stages = 1;
  std::int64_t chunks = 1;
};

/// Bytes of weights, gradients and Adam state at 18 bytes per parameter, without embeddings: 18 * 12 L h^2 / (t p).
[[nodiscard]] Bytes transformer_static_bytes(const TransformerShape& shape);
/// Activation bytes of the first stage, two-byte elements, 1F1B: per layer q b h (10 + 24/t + 5 a q / (h t)), for L
/// layers, times 1 + (p-1)/(p v) if v > 1. Source: Korthikanti et al., MLSys 2023, with tensor parallelism.
[[nodiscard]] Bytes transformer_activation_bytes(const TransformerShape& shape);
/// The same with sequence parallelism and selective recomputation: 34 q b h / t per layer.
[[nodiscard]] Bytes transformer_selective_activation_bytes(const TransformerShape& shape);

/// Weight versions that asynchronous 1F1B keeps on each stage: ceil(sum of r_k for k >= s / r_s).
/// Source: PipeDream (SOSP 2019) and its runtime.
[[nodiscard]] std::vector<int> weight_versions(const std::vector<int>& replicas);

/// Lower and upper bounds of the step that simulate() gives, from sums and maxima over stages and boundaries; no list
/// is replayed. The step of an asynchronous schedule is the mean of BoundPlan::step_window. Both bounds hold in both
/// TransferModes, with messages that share ports, any boundaries, replicas, buckets, reduces and updates.
/// Absent where ranks share a host or messages take processor time, and for an asynchronous schedule whose stages sum
/// gradients. Precondition: the lists are those of BoundPlan::action_lists with a prefetch of 2 or more.
///
/// low: a rank's work, after the longest chain of forwards and messages to its first action and before the longest
/// chain of backwards and messages from its last backward, its sum and its update. Asynchronous: the work of the
/// window's microbatches but those that a full pipeline holds.
///
/// high, the least of those that apply:
///   all work and all messages, one after the other: something is always under way, and messages that share a port
///     take as much time as one after the other;
///   gpipe, forward: a flow shop, sum F' + (M-1) max F, and the same for backwards;
///   1f1b, zb-h1, interleaved-1f1b: the longest chain of actions that wait for each other passes at most M + p - 1
///     forwards and as many backwards, of which one is of each stage: sum F' + sum B' + (M-1) (max F' + max B'), F' and
///     B' with their messages; interleaved, M v + p - 1 of each;
///   1f1b with any replicas: a periodic step, in which microbatch m of each stage begins m P after the first one. P is
///     the least period that keeps every order and every message. A replay begins each action as soon as it can, so
///     none is later than in this step.
/// The proofs are beside the code. Source: derived; Johnson, Naval Research Logistics Quarterly 1(1), 1954 (flow
/// shops).
[[nodiscard]] std::optional<Bracket> step_bracket(const SimulationInput& input);

}  // namespace stagecraft
