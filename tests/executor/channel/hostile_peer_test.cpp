#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <limits>

#include "executor/channel/control_tags.h"
#include "executor/channel/peer_proof.h"
#include "executor/channel/tensor_header.h"
#include "tests/executor/channel/channel_suite.h"

// What a peer may say that is no rank of this run, or a broken one.

namespace stagecraft::channel {
namespace {

using ::testing::HasSubstr;

/// A header with these numbers in front.
std::string error_of_header(const std::vector<std::int64_t>& numbers) {
  at::Tensor header = make_header({});
  std::copy(numbers.begin(), numbers.end(), header.mutable_data_ptr<std::int64_t>());
  return error_of([&] { (void)read_header(header, "rank 1 under tag 7"); });
}

TEST(TensorHeader, SaysWhatItWasMadeFrom) {
  for (const TensorSpec& spec : {TensorSpec{{}, at::kBool}, TensorSpec{{0, 3}, at::kLong},
                                 TensorSpec{std::vector<std::int64_t>(kMostDimensions, 2), at::kBFloat16}}) {
    const TensorSpec read = read_header(make_header(spec), "rank 1");
    EXPECT_EQ(read.shape, spec.shape);
    EXPECT_EQ(read.dtype, spec.dtype);
  }
}

TEST(TensorHeader, RefusesWhatNoTensorHas) {
  const std::string begin = "rank 1 under tag 7 announces a tensor with ";
  EXPECT_THAT(error_of_header({-1, 1, 4}), HasSubstr(begin + "dtype -1, must be 0 to "));
  EXPECT_THAT(error_of_header({300, 1, 4}), HasSubstr(begin + "dtype 300, must be 0 to "));
  EXPECT_THAT(error_of_header({static_cast<std::int64_t>(at::ScalarType::Undefined), 1, 4}),
              HasSubstr(begin + "dtype"));
  EXPECT_EQ(error_of_header({6, -1, 4}), begin + "-1 dimensions, must be 0 to 14");
  EXPECT_EQ(error_of_header({6, 15, 4}), begin + "15 dimensions, must be 0 to 14");
  EXPECT_EQ(error_of_header({6, std::numeric_limits<std::int64_t>::min(), 4}),
            begin + "-9223372036854775808 dimensions, must be 0 to 14");
  EXPECT_EQ(error_of_header({6, 2, 4, -8}), begin + "a size of -8, must be 0 to 281474976710656");
}

TEST(PeerProof, LetsPassWhoKnowsTheKey) {
  run_on_ranks("local", 3, kLong, [](Channel& channel) { prove_to_each_other(channel, "key"); });
}

TEST(PeerProof, NamesWhoDoesNotKnowTheKey) {
  run_on_ranks("local", 3, kLong, [](Channel& channel) {
    const bool stranger = channel.rank() == 1;
    const std::string error = error_of([&] { prove_to_each_other(channel, stranger ? "guess" : "key"); });
    if (!stranger) {
      EXPECT_EQ(error, "rank " + std::to_string(channel.rank()) +
                           ": the peer that connected as rank 1 does not know the run's secret");
    }
  });
}

TEST(PeerProof, IsNotFooledByItsOwnWords) {
  // The stranger knows no key and gives back whatever it hears.
  run_on_ranks("local", 2, kLong, [](Channel& channel) {
    if (channel.rank() == 0) {
      EXPECT_EQ(error_of([&] { prove_to_each_other(channel, "key"); }),
                "rank 0: the peer that connected as rank 1 does not know the run's secret");
      return;
    }
    for (int message = 0; message < 2; ++message) {
      const at::Tensor heard = channel.receive({{64}, at::kByte}, 0, kProofTag)->wait();
      channel.send(heard.clone(), 0, kProofTag)->wait();
    }
  });
}

}  // namespace
}  // namespace stagecraft::channel
