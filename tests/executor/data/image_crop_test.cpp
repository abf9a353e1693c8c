#include "executor/data/image_crop.h"

#include <gtest/gtest.h>

#include <random>

#include "costmodel/index.h"

namespace stagecraft::data {
namespace {

using files::Image;

/// An image whose pixels are grey, of these values.
Image grey(int width, int height, const std::vector<int>& values) {
  Image out{.width = width, .height = height, .pixels = {}};
  for (const int value : values) out.pixels.insert(out.pixels.end(), 3, static_cast<std::uint8_t>(value));
  return out;
}

// Two pixels from four: a triangle of two pixels' width at each side of the centre. Around 1 its heights at the middles
// of the pixels 0, 1, 2 are 3/4, 3/4, 1/4 (a fourth pixel would have none): (0 * 3 + 100 * 3 + 200 * 1) / 7 = 71.4.
// Around 3, of the pixels 1, 2, 3: (100 * 1 + 200 * 3 + 40 * 3) / 7 = 117.1.
TEST(Resized, ShrinksWithAWideFilter) {
  EXPECT_EQ(resized(grey(4, 1, {0, 100, 200, 40}), 2, 1), grey(2, 1, {71, 117}));
  EXPECT_EQ(resized(grey(1, 4, {0, 100, 200, 40}), 1, 2), grey(1, 2, {71, 117}));
}

// Four pixels from two: their middles are at 1/4, 3/4, 5/4 and 7/4, those of the old ones at 1/2 and 3/2.
TEST(Resized, Enlarges) {
  EXPECT_EQ(resized(grey(2, 1, {0, 100}), 4, 1), grey(4, 1, {0, 25, 75, 100}));
  EXPECT_EQ(resized(grey(2, 2, {0, 100, 0, 100}), 4, 2), grey(4, 2, {0, 25, 75, 100, 0, 25, 75, 100}));
}

TEST(Resized, KeepsAnImageOfOneColour) {
  std::mt19937_64 random(1);
  for (int i = 0; i < 50; ++i) {
    const auto side = [&] { return to_int(1 + random() % 60); };
    const int value = to_int(random() % 256);
    const int width = side();
    const int height = side();
    const int to_width = side();
    const int to_height = side();
    const std::vector<int> before(to_index(width * height), value);
    const std::vector<int> after(to_index(to_width * to_height), value);
    EXPECT_EQ(resized(grey(width, height, before), to_width, to_height), grey(to_width, to_height, after))
        << "seed 1, case " << i;
  }
}

TEST(WithShorterSide, KeepsTheProportions) {
  const auto size = [](int width, int height, int side) {
    const Image out = with_shorter_side(grey(width, height, std::vector<int>(to_index(width * height))), side);
    return std::pair(out.width, out.height);
  };
  EXPECT_EQ(size(30, 20, 10), std::pair(15, 10));
  EXPECT_EQ(size(20, 31, 10), std::pair(10, 15));  // 15.5
  EXPECT_EQ(size(7, 7, 9), std::pair(9, 9));
  EXPECT_EQ(size(8, 9, 8), std::pair(8, 9));
}

// Python's round() takes halves to the even number: 0.5, 1.5, 2.5 and 3.5 to 0, 2, 2 and 4.
TEST(CentreBox, RoundsHalvesToEven) {
  for (const auto& [spare, left] : {std::pair(0, 0), {1, 0}, {2, 1}, {3, 2}, {4, 2}, {5, 2}, {6, 3}, {7, 4}}) {
    const Image image{.width = 10 + spare, .height = 10, .pixels = {}};
    EXPECT_EQ(centre_box(image, 10, 4), (Box{.left = left, .top = 3, .width = 10, .height = 4})) << spare;
  }
}

TEST(Cropped, TakesThePixelsOfTheBox) {
  const Image image = grey(3, 3, {0, 1, 2, 3, 4, 5, 6, 7, 8});
  EXPECT_EQ(cropped(image, {.left = 1, .top = 1, .width = 2, .height = 2}), grey(2, 2, {4, 5, 7, 8}));
}

}  // namespace
}  // namespace stagecraft::data
