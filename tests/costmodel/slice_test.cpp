#include "costmodel/slice.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace stagecraft {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

using Shape = std::vector<std::int64_t>;

TEST(TensorSlice, CountsItsElements) {
  EXPECT_EQ(element_count({}), 1);
  EXPECT_EQ(element_count({3, 4}), 12);
  EXPECT_EQ(element_count({std::int64_t{1} << 60, std::int64_t{1} << 60, 0}), 0);
}

TEST(TensorSlice, IsInsideATensorOfItsDimensions) {
  EXPECT_TRUE(is_inside({{}, {}}, {}));
  EXPECT_TRUE(is_inside({{1, 0}, {2, 4}}, {3, 4}));
  EXPECT_TRUE(is_inside({{3, 0}, {0, 4}}, {3, 4}));
  EXPECT_FALSE(is_inside({{2, 0}, {2, 4}}, {3, 4}));
  EXPECT_FALSE(is_inside({{-1, 0}, {2, 4}}, {3, 4}));
  EXPECT_FALSE(is_inside({{0, 0}, {3, -1}}, {3, 4}));
  EXPECT_FALSE(is_inside({{0}, {3}}, {3, 4}));
  EXPECT_FALSE(is_inside({{0, 0}, {3}}, {3, 4}));
}

TEST(TensorSlice, HasTheCommonPartOfTwo) {
  EXPECT_EQ(common_part({{0, 1}, {3, 3}}, {{2, 0}, {4, 2}}), (TensorSlice{{2, 1}, {1, 1}}));
  EXPECT_EQ(common_part({{0, 0}, {2, 4}}, {{2, 0}, {1, 4}}), (TensorSlice{{2, 0}, {0, 4}}));
  EXPECT_EQ(common_part({}, {}), TensorSlice{});
}

// Elements 2 to 10 of 3 rows of 4: the end of row 0, row 1, the beginning of row 2.
TEST(TensorSlice, AreAtMostThreeForARangeOfAMatrix) {
  EXPECT_THAT(slices_of_range({3, 4}, 2, 9),
              ElementsAre(TensorSlice{{0, 2}, {1, 2}}, TensorSlice{{1, 0}, {1, 4}}, TensorSlice{{2, 0}, {1, 3}}));
  EXPECT_THAT(slices_of_range({3, 4}, 5, 2), ElementsAre(TensorSlice{{1, 1}, {1, 2}}));
  EXPECT_THAT(slices_of_range({3, 4}, 0, 12), ElementsAre(whole_slice({3, 4})));
  EXPECT_THAT(slices_of_range({}, 0, 1), ElementsAre(whole_slice({})));
  EXPECT_THAT(slices_of_range({3, 4}, 7, 0), IsEmpty());
  EXPECT_THAT(slices_of_range({0, 4}, 0, 0), IsEmpty());
  EXPECT_EQ(slice_text({{0, 2}, {1, 2}}), "[0:1, 2:4]");
  EXPECT_EQ(slice_text({}), "[]");
}

/// Places of a slice's elements in the flattened tensor, in their order.
void append_places(const TensorSlice& slice, const Shape& shape, std::vector<std::int64_t>& out) {
  Shape index = slice.begin;
  for (std::int64_t i = 0; i < element_count(slice.shape); ++i) {
    std::int64_t place = 0;
    for (std::size_t d = 0; d < shape.size(); ++d) place = place * shape[d] + index[d];
    out.push_back(place);
    for (std::size_t d = shape.size(); d-- > 0;) {
      if (++index[d] < slice.begin[d] + slice.shape[d]) break;
      index[d] = slice.begin[d];
    }
  }
}

TEST(TensorSlice, CoverEveryRangeInOrder) {
  for (const Shape& shape : std::vector<Shape>{{5}, {3, 4}, {4, 1}, {2, 3, 2}, {3, 1, 2, 2}}) {
    for (std::int64_t first = 0; first <= element_count(shape); ++first) {
      for (std::int64_t end = first; end <= element_count(shape); ++end) {
        std::vector<std::int64_t> expected;
        std::vector<std::int64_t> found;
        for (std::int64_t place = first; place < end; ++place) expected.push_back(place);
        const std::vector<TensorSlice> slices = slices_of_range(shape, first, end - first);
        for (const TensorSlice& slice : slices) {
          EXPECT_TRUE(is_inside(slice, shape)) << slice_text(slice);
          append_places(slice, shape, found);
        }
        EXPECT_EQ(found, expected) << first << " to " << end;
        EXPECT_LE(slices.size(), 2 * shape.size() - 1);
      }
    }
  }
}

}  // namespace
}  // namespace stagecraft
