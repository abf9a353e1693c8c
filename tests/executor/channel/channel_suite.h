#pragma once

#include <ATen/ops/empty.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>
#include <functional>
#include <string>
#include <tuple>

#include "executor/channel/channel.h"
#include "executor/channel/table/channels.h"
#include "tests/support/channels/ranks.h"

// Shared by the conformance tests of channels.

namespace stagecraft {

inline constexpr std::chrono::milliseconds kLong{20000};
inline constexpr std::chrono::milliseconds kShort{300};

/// Parameterised by channel and number of ranks.
class ChannelSuite : public ::testing::TestWithParam<std::tuple<std::string, int>> {
 protected:
  static int ranks() { return std::get<1>(GetParam()); }
  /// A GPU channel matches the messages of an edge by order only and does not check shapes again, which a verified plan
  /// guarantees. Its waits do not block the host.
  static bool is_of_gpus() { return channel_device(std::get<0>(GetParam())) == "cuda"; }
  static void on_ranks(const std::function<void(channel::Channel&)>& body, std::chrono::milliseconds deadline = kLong) {
    run_on_ranks(std::get<0>(GetParam()), ranks(), deadline, body);
  }
};

/// "gloo_3".
inline std::string name_of(const ::testing::TestParamInfo<std::tuple<std::string, int>>& entry) {
  return std::get<0>(entry.param) + "_" + std::to_string(std::get<1>(entry.param));
}

/// Values that differ for every (rank, tag, message, index), as far as the dtype can represent the difference.
inline at::Tensor numbered(const channel::TensorSpec& spec, int from, int tag, int message) {
  at::Tensor values = at::empty(spec.shape, at::kLong);
  auto* out = values.mutable_data_ptr<std::int64_t>();
  for (std::int64_t i = 0; i < values.numel(); ++i) out[i] = ((i * 5 + message) * 16 + tag) * 8 + from;
  if (spec.dtype == at::kBool) return values.remainder(3).eq(0);
  return values.to(spec.dtype);
}

inline bool same(const at::Tensor& a, const at::Tensor& b) { return a.scalar_type() == b.scalar_type() && a.equal(b); }

inline std::string error_of(const std::function<void()>& body) {
  try {
    body();
  } catch (const meeting::PeerError& error) { return error.what(); }
  return "no error";
}

}  // namespace stagecraft
