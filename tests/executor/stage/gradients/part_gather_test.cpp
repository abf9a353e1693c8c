#include "executor/stage/gradients/part_gather.h"

#include <ATen/ops/arange.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/full_like.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <thread>

#include "costmodel/index.h"
#include "executor/channel/channel_local.h"
#include "executor/stage/stage_program.h"

namespace stagecraft::stage {
namespace {

TEST(PartValues, AreThoseOfFloats) {
  EXPECT_THAT(part_values({{0, 1, 2}, Bytes(32), {}, {0}, 0, {Bytes(24), Bytes(0), Bytes(8)}}),
              ::testing::ElementsAre(6, 0, 2));
  EXPECT_TRUE(part_values({{0, 1}, Bytes(32), {}, {0}, 0}).empty());
}

// Tensors of 4, 6 and 2 values, of which three ranks own 1, 0 and 11: the second owns nothing. The second tensor is
// transposed, and ranges follow its memory.
TEST(PartGather, GivesEveryMemberWhatTheOthersOwn) {
  const std::vector<std::int64_t> counts{1, 0, 11};
  const auto tensors_of = [](const at::Tensor& flat) {
    return std::vector<at::Tensor>{flat.narrow(0, 0, 4).clone(), flat.narrow(0, 4, 6).clone().view({3, 2}).t(),
                                   flat.narrow(0, 10, 2).clone()};
  };
  const at::Tensor wanted = at::arange(12, at::kFloat);
  const auto channels = channel::make_local_channels(3, std::chrono::seconds(20));
  std::vector<std::jthread> ranks;
  for (int rank = 0; rank < 3; ++rank) {
    ranks.emplace_back([&, rank] {
      // What a rank does not own, it does not know.
      at::Tensor known = at::full_like(wanted, -1);
      if (rank == 0) known.narrow(0, 0, 1).copy_(wanted.narrow(0, 0, 1));
      if (rank == 2) known.narrow(0, 1, 11).copy_(wanted.narrow(0, 1, 11));
      const std::vector<at::Tensor> tensors = tensors_of(known);
      PartGather gather({.kind = Collective::AllGather,
                         .values = at::empty({12}, at::kFloat),
                         .members = {0, 1, 2},
                         .tag = 7,
                         .counts = counts},
                        rank, tensors);
      for (int step = 0; step < 2; ++step) {
        gather.start(*channels[to_index(rank)]);
        gather.finish();
        const std::vector<at::Tensor> expected = tensors_of(wanted.mul(step + 1));
        for (std::size_t i = 0; i < tensors.size(); ++i)
          EXPECT_TRUE(at::equal(tensors[i], expected[i])) << "rank " << rank << ", tensor " << i;
        // The next update of what it owns.
        if (rank == 0) tensors[0].narrow(0, 0, 1).mul_(2);
        if (rank == 2) {
          tensors[0].narrow(0, 1, 3).mul_(2);
          tensors[1].mul_(2);
          tensors[2].mul_(2);
        }
      }
    });
  }
}

}  // namespace
}  // namespace stagecraft::stage
