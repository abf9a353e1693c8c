#include "executor/channel/tensor_message.h"

#include <ATen/ops/arange.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/ones.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <limits>
#include <random>

#include "tests/executor/channel/channel_suite.h"

namespace stagecraft::channel {
namespace {

using Strides = std::vector<std::int64_t>;

at::Tensor counted(at::IntArrayRef shape) { return at::arange(24, at::kFloat).view(shape); }

/// Sends `tensor` as a channel does.
at::Tensor sent(const at::Tensor& tensor) {
  const at::Tensor memory = memory_of(tensor, tensor.strides()).clone();
  EXPECT_TRUE(memory.is_contiguous());
  return from_memory(memory, tensor.strides());
}

TEST(TensorMemory, KeepsStridesWithoutGaps) {
  for (const at::Tensor& tensor :
       {counted({2, 3, 4}), counted({2, 3, 4}).transpose(1, 2), counted({24, 1}).t(),
        counted({2, 3, 2, 2}).contiguous(at::MemoryFormat::ChannelsLast), counted({4, 6}).narrow(0, 1, 2).t()}) {
    EXPECT_TRUE(packed(tensor).is_same(tensor));
    const at::Tensor got = sent(tensor);
    EXPECT_EQ(got.strides(), tensor.strides());
    EXPECT_TRUE(at::equal(got, tensor));
  }
}

TEST(TensorMemory, ClosesGapsAndKeepsTheOrderOfDimensions) {
  // Columns 1 and 2 of [4, 6], transposed: [2, 4] with strides 1 and 6, then 1 and 2.
  const at::Tensor part = counted({4, 6}).narrow(1, 1, 2).t();
  EXPECT_FALSE(is_packed(part));
  const at::Tensor closed = packed(part);
  EXPECT_TRUE(is_packed(closed));
  EXPECT_EQ(closed.strides().vec(), Strides({1, 2}));
  EXPECT_TRUE(at::equal(closed, part));
  EXPECT_TRUE(at::equal(sent(closed), part));
}

TEST(TensorMemory, KeepsRepeatedDimensions) {
  const at::Tensor repeated = counted({4, 6}).t().unsqueeze(1).expand({6, 3, 4});
  EXPECT_FALSE(is_packed(repeated)) << "there is memory for 24 of 72 values";
  const at::Tensor whole = packed(repeated);
  EXPECT_TRUE(is_packed(whole));
  EXPECT_EQ(whole.strides().vec(), Strides({1, 0, 6}));
  const at::Tensor got = sent(whole);
  EXPECT_EQ(got.strides().vec(), Strides({1, 0, 6}));
  EXPECT_TRUE(at::equal(got, repeated));
  EXPECT_EQ(packed(at::ones({}).expand({2, 3})).strides().vec(), Strides({0, 0}));
}

TEST(TensorMemory, BringsATensorWithOtherStridesInTheAnnouncedOnes) {
  const at::Tensor values = counted({4, 6});
  const at::Tensor got = from_memory(memory_of(values, Strides{1, 4}), Strides{1, 4});
  EXPECT_EQ(got.strides().vec(), Strides({1, 4}));
  EXPECT_TRUE(at::equal(got, values));
  // Announced as repeated, but the values are not: the dimension of stride 0 then comes first.
  const at::Tensor other = from_memory(memory_of(values, Strides{1, 0}), Strides{1, 0});
  EXPECT_EQ(other.strides().vec(), Strides({1, 4}));
  EXPECT_TRUE(at::equal(other, values));
}

TEST(TensorMemory, TakesTensorsWithoutValuesOrDimensions) {
  EXPECT_TRUE(at::equal(sent(packed(at::ones({}))), at::ones({})));
  EXPECT_EQ(sent(packed(at::ones({3, 0, 2}).transpose(0, 2))).sizes().vec(), Strides({2, 0, 3}));
}

using ::testing::HasSubstr;

/// The error for a header whose first numbers are replaced by these.
std::string error_of_header(const std::vector<std::int64_t>& numbers) {
  at::Tensor header = empty_header();
  std::copy(numbers.begin(), numbers.end(), header.mutable_data_ptr<std::int64_t>());
  return error_of([&] { (void)read_header(header, "rank 1 under tag 7"); });
}

TEST(TensorHeader, SaysWhatItWasMadeFrom) {
  for (const TensorSpec& spec : {TensorSpec{{}, at::kBool}, TensorSpec{{0, 3}, at::kLong},
                                 TensorSpec{std::vector<std::int64_t>(kMostDimensions, 2), at::kBFloat16}}) {
    const std::vector<std::int64_t> strides = at::empty(spec.shape, spec.dtype).strides().vec();
    const AnnouncedTensor read = read_header(make_header({spec, strides}), "rank 1");
    EXPECT_EQ(read.spec.shape, spec.shape);
    EXPECT_EQ(read.spec.dtype, spec.dtype);
    EXPECT_EQ(read.strides, strides);
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
  EXPECT_EQ(error_of_header({6, 1, 4, -1}), begin + "a stride of -1, must be 0 to 281474976710656");
}

TEST(TensorHeader, AnnouncesWhatIsExpectedOrIsRefusedWithBothSpecs) {
  const at::Tensor header = make_header({{{4, 8}, at::kFloat}, {1, 4}});
  EXPECT_EQ(check_header(header, 2, {{4, 8}, at::kFloat}, 1, 7), (std::vector<std::int64_t>{1, 4}));
  const auto error_for = [&](const TensorSpec& expected) {
    return error_of([&] { (void)check_header(header, 2, expected, 1, 7); });
  };
  EXPECT_EQ(error_for({{4, 9}, at::kFloat}),
            "rank 2 expected float32 [4, 9] from rank 1 under tag 7, got float32 [4, 8]");
  const auto strides_error = [](const std::vector<std::int64_t>& strides) {
    const at::Tensor gaps = make_header({{{4, 8}, at::kFloat}, strides});
    return error_of([&] { (void)check_header(gaps, 2, {{4, 8}, at::kFloat}, 1, 7); });
  };
  EXPECT_EQ(strides_error({9, 1}),
            "rank 1 under tag 7 announces float32 [4, 8] with strides [9, 1], which leave gaps or overlap");
  EXPECT_EQ(strides_error({0, 1}), "no error") << "repeated rows";
  EXPECT_EQ(error_for({{4, 8}, at::kHalf}),
            "rank 2 expected float16 [4, 8] from rank 1 under tag 7, got float32 [4, 8]");
}

TEST(TensorHeader, TakesAtMostFourteenDimensions) {
  EXPECT_NO_THROW(check_dimensions({std::vector<std::int64_t>(14, 1), at::kFloat}));
  EXPECT_THAT([] { check_dimensions({std::vector<std::int64_t>(15, 1), at::kFloat}); },
              ::testing::ThrowsMessage<std::invalid_argument>(
                  "a tensor has at most 14 dimensions, got float32 [1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1]"));
}

TEST(TensorHeader, HasOneLengthForEverySpec) {
  EXPECT_EQ(empty_header().numel(), 30);  // dtype, number of dimensions, 14 sizes, 14 strides
  const std::vector<std::int64_t> most(kMostDimensions, 1);
  EXPECT_EQ(make_header({{most, at::kHalf}, most}).numel(), 30);
}

TEST(TensorHeader, OfRandomNumbersIsReadOrRefused) {
  // About half of these numbers are valid: whatever is read back must be within the bounds.
  constexpr unsigned kSeed = 5;
  SCOPED_TRACE("seed " + std::to_string(kSeed));
  std::mt19937_64 random(kSeed);
  int read = 0;
  int refused = 0;
  for (int i = 0; i < 2000; ++i) {
    at::Tensor header = empty_header();
    auto* const numbers = header.mutable_data_ptr<std::int64_t>();
    numbers[0] = static_cast<std::int64_t>(random() % 12);
    numbers[1] = static_cast<std::int64_t>(random() % 20) - 2;
    for (int k = 2; k < 16; ++k) numbers[k] = static_cast<std::int64_t>(random() >> (random() % 20 == 0 ? 0 : 20));
    try {
      const TensorSpec spec = read_header(header, "rank 1").spec;
      ++read;
      EXPECT_EQ(static_cast<std::int64_t>(spec.shape.size()), numbers[1]);
      for (const std::int64_t size : spec.shape) EXPECT_TRUE(size >= 0 && size <= std::int64_t{1} << 48) << size;
    } catch (const meeting::PeerError& error) {
      ++refused;
      EXPECT_THAT(error.what(), HasSubstr("rank 1"));
    }
  }
  EXPECT_GT(read, 200);
  EXPECT_GT(refused, 200);
}

}  // namespace

}  // namespace stagecraft::channel
