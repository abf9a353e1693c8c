#pragma once

#include <ATen/ops/eye.h>
#include <ATen/ops/full.h>
#include <ATen/ops/matmul.h>
#include <gtest/gtest.h>

#include <memory>
#include <numeric>
#include <string>
#include <vector>

#include "costmodel/index.h"
#include "executor/channel/control_tags.h"
#include "executor/channel/nccl_program.h"
#include "tests/executor/channel/channel_suite.h"

// What every rank of an NCCL channel must do, over the real library on a GPU and over the fake one.

namespace stagecraft {

/// Edges in both directions between any two ranks, three tags each, and reductions of all ranks and of the first and
/// last.
inline channel::NcclProgram all_to_all(int ranks) {
  channel::NcclProgram out;
  std::vector<int> all(to_index(ranks));
  std::iota(all.begin(), all.end(), 0);
  for (const int from : all) {
    for (const int to : all) {
      if (from == to) continue;
      out.communicators.push_back(
          {"edge " + std::to_string(from) + " " + std::to_string(to), {from, to}, {0, 1, 2}, false, 0});
    }
  }
  out.communicators.push_back({"sum of all", all, {100, 101}, true, 0});
  if (ranks > 2) out.communicators.push_back({"sum of two", {0, ranks - 1}, {100}, true, 0});
  out.rounds = channel::assign_rounds(out.communicators);
  return out;
}

/// Every element of every dtype arrives, in order, on every edge, although everything is posted before any wait, in an
/// order that would deadlock with one stream per peer.
inline void expect_deliveries(channel::Channel& channel, c10::Device device) {
  const std::vector<channel::TensorSpec> specs{{{7, 11}, at::kFloat},     {{5}, at::kLong},  {{2, 3}, at::kBFloat16},
                                               {{0, 3}, at::kFloat},      {{}, at::kDouble}, {{9}, at::kBool},
                                               {{1000, 1000}, at::kFloat}};
  const int rank = channel.rank();
  const auto tag = [](std::size_t i) { return to_int(i % 3); };
  const auto values = [&](std::size_t i, int from) { return numbered(specs[i], from, tag(i), to_int(i)); };
  std::vector<std::unique_ptr<channel::Sending>> sends;
  std::vector<std::unique_ptr<channel::Receiving>> receives;
  for (int peer = 0; peer < channel.ranks(); ++peer) {
    if (peer == rank) continue;
    for (std::size_t i = 0; i < specs.size(); ++i)
      sends.push_back(channel.send(values(i, rank).to(device), peer, tag(i)));
    for (std::size_t i = 0; i < specs.size(); ++i) receives.push_back(channel.receive(specs[i], peer, tag(i)));
  }
  std::size_t next = 0;
  for (int peer = 0; peer < channel.ranks(); ++peer) {
    if (peer == rank) continue;
    for (std::size_t i = 0; i < specs.size(); ++i)
      EXPECT_TRUE(same(receives[next++]->wait().cpu(), values(i, peer))) << i << " from " << peer << " to " << rank;
  }
  for (const auto& sending : sends) sending->wait();
  channel.barrier();
}

/// Two reductions in progress at the same time, and one over the control channel.
inline void expect_sums_of_all(channel::Channel& channel, c10::Device device) {
  const int ranks = channel.ranks();
  std::vector<int> all(to_index(ranks));
  std::iota(all.begin(), all.end(), 0);
  at::Tensor one = at::full({5}, channel.rank() + 1.0, at::TensorOptions(at::kFloat).device(device));
  at::Tensor two = at::full({200, 300}, 10.0 * (channel.rank() + 1), at::TensorOptions(at::kFloat).device(device));
  const auto first = channel.start({.kind = Collective::AllReduce, .values = one, .members = all, .tag = 100});
  const auto second = channel.start({.kind = Collective::AllReduce, .values = two, .members = all, .tag = 101});
  first->wait();
  second->wait();
  const double sum = ranks * (ranks + 1) / 2.0;
  EXPECT_TRUE(one.eq(sum).all().item<bool>());
  EXPECT_TRUE(two.eq(10 * sum).all().item<bool>());
  at::Tensor control = at::full({3}, 1.0);
  channel.start({.kind = Collective::AllReduce, .values = control, .members = all, .tag = channel::kStopTag})->wait();
  EXPECT_TRUE(control.eq(ranks).all().item<bool>());
}

/// What a sender writes after waiting for its send does not change what arrives, and the next message does not
/// overwrite what a receiver still reads: the streams are ordered correctly.
inline void expect_ordered_streams(channel::Channel& channel, c10::Device device) {
  constexpr int kMessages = 200;
  const channel::TensorSpec spec{{256, 1024}, at::kFloat};
  const auto options = at::TensorOptions(at::kFloat).device(device);
  if (channel.rank() == 0) {
    at::Tensor values = at::full(spec.shape, 0.0, options);
    for (int message = 0; message < kMessages; ++message) {
      values.fill_(message);
      channel.send(values, 1, 0)->wait();
    }
  } else if (channel.rank() == 1) {
    at::Tensor work = at::eye(device.is_cpu() ? 64 : 4096, options);
    at::Tensor wrong = at::full({}, 0, at::TensorOptions(at::kLong).device(device));
    for (int message = 0; message < kMessages; ++message) {
      const at::Tensor got = channel.receive(spec, 0, 0)->wait();
      // On a GPU this takes longer than a message, and longer than the host takes to enqueue it: the next messages are
      // posted before it is done.
      for (int i = 0; i < 4; ++i) work = at::matmul(work, work);
      wrong += got.ne(message).sum();
    }
    EXPECT_EQ(wrong.item<std::int64_t>(), 0);
  }
  channel.barrier();
}

}  // namespace stagecraft
