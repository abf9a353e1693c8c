#include "executor/data/image_crop.h"

#include <algorithm>
#include <array>
#include <cmath>

#include "costmodel/index.h"

namespace stagecraft::data {
namespace {

using files::Image;

constexpr int kWeightBits = 22;  // as in Pillow: 32 bits, less 8 of the pixel and 2 for sums above 1
constexpr int kHalf = 1 << (kWeightBits - 1);

/// The pixels that one pixel of the result is made of, and their weights.
struct Taps {
  int first = 0;
  std::vector<int> weights;
};

/// For each of `out` pixels, those of `in` that it is made of (Pillow's precompute_coeffs).
std::vector<Taps> taps(int in, int out) {
  const double scale = static_cast<double>(in) / out;
  const double support = std::max(scale, 1.0);
  std::vector<Taps> all;
  for (int i = 0; i < out; ++i) {
    const double centre = (i + 0.5) * scale;
    const int first = std::max(0, static_cast<int>(centre - support + 0.5));
    const int last = std::min(in, static_cast<int>(centre + support + 0.5));
    std::vector<double> shares;
    double sum = 0;
    for (int x = first; x < last; ++x) {
      const double share = std::max(0.0, 1 - std::abs((x - centre + 0.5) * (1 / support)));
      shares.push_back(share);
      sum += share;
    }
    Taps pixel{.first = first, .weights = {}};
    for (const double share : shares) pixel.weights.push_back(static_cast<int>(0.5 + share / sum * (1 << kWeightBits)));
    all.push_back(std::move(pixel));
  }
  return all;
}

std::uint8_t pixel(int sum) { return static_cast<std::uint8_t>(std::clamp(sum >> kWeightBits, 0, 255)); }

/// Resamples one row of pixels.
void resample_row(const std::vector<Taps>& columns, const std::uint8_t* from, std::uint8_t* to) {
  for (const Taps& column : columns) {
    std::array<int, 3> sums{kHalf, kHalf, kHalf};
    const std::uint8_t* value = from + 3 * to_index(column.first);
    for (const int weight : column.weights)
      for (int& sum : sums) sum += weight * *value++;
    to = std::ranges::transform(sums, to, pixel).out;
  }
}

Image sized(int width, int height) {
  return {
      .width = width, .height = height, .pixels = std::vector<std::uint8_t>(3 * to_index(width) * to_index(height))};
}

/// Half of `pixels`, halves rounded to even.
int half(int pixels) { return pixels / 2 + (pixels % 4 == 3 ? 1 : 0); }

}  // namespace

Box centre_box(const Image& image, int width, int height) {
  return {.left = half(image.width - width), .top = half(image.height - height), .width = width, .height = height};
}

Image cropped(const Image& image, const Box& box) {
  Image out = sized(box.width, box.height);
  auto to = out.pixels.begin();
  for (int y = box.top; y < box.top + box.height; ++y) {
    const std::uint8_t* row = image.pixels.data() + 3 * (to_index(y) * to_index(image.width) + to_index(box.left));
    to = std::copy(row, row + 3 * to_index(box.width), to);
  }
  return out;
}

Image with_shorter_side(const Image& image, int side) {
  const int shorter = std::min(image.width, image.height);
  if (shorter == side) return image;
  const auto scaled = [&](int length) {
    return length == shorter ? side : static_cast<int>(static_cast<std::int64_t>(side) * length / shorter);
  };
  return resized(image, scaled(image.width), scaled(image.height));
}

Image resized(const Image& image, int width, int height) {
  Image wide = image;
  if (width != image.width) {
    wide = sized(width, image.height);
    const std::vector<Taps> columns = taps(image.width, width);
    for (std::size_t y = 0; y < to_index(image.height); ++y)
      resample_row(columns, image.pixels.data() + 3 * y * to_index(image.width),
                   wide.pixels.data() + 3 * y * to_index(width));
  }
  if (height == image.height) return wide;
  Image out = sized(width, height);
  const std::size_t row_bytes = 3 * to_index(width);
  std::vector<int> sums(row_bytes);
  std::uint8_t* to = out.pixels.data();
  for (const Taps& row : taps(image.height, height)) {
    std::ranges::fill(sums, kHalf);
    const std::uint8_t* value = wide.pixels.data() + to_index(row.first) * row_bytes;
    for (const int weight : row.weights)
      for (int& sum : sums) sum += weight * *value++;
    to = std::ranges::transform(sums, to, pixel).out;
  }
  return out;
}

}  // namespace stagecraft::data
