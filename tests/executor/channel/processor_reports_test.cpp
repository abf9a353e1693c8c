#include "executor/channel/processor_reports.h"

#include <ATen/ops/zeros.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "costmodel/index.h"
#include "executor/channel/control_tags.h"
#include "tests/support/channels/ranks.h"

namespace stagecraft::channel {
namespace {

using ::testing::HasSubstr;
using ::testing::ThrowsMessage;

constexpr std::chrono::seconds kDeadline{20};

class ProcessorReports : public ::testing::TestWithParam<std::string> {};

// The ranks are threads of this process, which used 6 s in 4 s; the machine 7 s.
TEST_P(ProcessorReports, GiveRank0TheUseOfTheHost) {
  const device::ProcessorMoment before{Seconds(10), Seconds(1), Seconds(100)};
  const device::ProcessorMoment after{Seconds(14), Seconds(7), Seconds(107)};
  run_on_ranks(GetParam(), 3, kDeadline, [&](Channel& channel) {
    const std::vector<ProcessorUse> use = gather_processor_use(channel, before, after);
    if (channel.rank() != 0) {
      EXPECT_TRUE(use.empty());
      return;
    }
    ASSERT_EQ(use.size(), 1U);
    EXPECT_EQ(use.front().ours, 1.5);
    EXPECT_EQ(use.front().others, 0.25);
    EXPECT_EQ(use.front().count, to_int(device::own_processors().size()));
  });
}

TEST_P(ProcessorReports, KnowNothingOfAHostWithoutCounters) {
  run_on_ranks(GetParam(), 2, kDeadline, [](Channel& channel) {
    EXPECT_TRUE(gather_processor_use(channel, {}, {Seconds(4), Seconds(1), {}}).empty());
  });
}

TEST_P(ProcessorReports, RefuseAnImpossibleTime) {
  const auto send_zeros = [](Channel& channel) {
    if (channel.rank() == 0) return (void)gather_processor_use(channel, {}, {});
    channel.send(at::zeros({6}, at::kLong), 0, kTimesTag)->wait();  // of no processors
  };
  EXPECT_THAT([&] { run_on_ranks(GetParam(), 2, kDeadline, send_zeros); },
              ThrowsMessage<meeting::PeerError>(HasSubstr("rank 1 sent an impossible processor time")));
}

INSTANTIATE_TEST_SUITE_P(Every, ProcessorReports, ::testing::ValuesIn(suite_channels()),
                         [](const auto& tested) { return tested.param; });

}  // namespace
}  // namespace stagecraft::channel
