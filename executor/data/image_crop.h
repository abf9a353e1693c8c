#pragma once

#include "executor/files/image_file.h"

namespace stagecraft::data {

/// A rectangle of pixels.
struct Box {
  int left = 0;
  int top = 0;
  int width = 0;
  int height = 0;
  friend bool operator==(const Box&, const Box&) = default;
};

/// Where torchvision's CenterCrop cuts `width` x `height` out of `image`, which is at least as large: halves of pixels
/// are rounded to even.
[[nodiscard]] Box centre_box(const files::Image& image, int width, int height);

/// The pixels in `box`, which lies in `image`.
[[nodiscard]] files::Image cropped(const files::Image& image, const Box& box);

/// `image` with its shorter side `side` pixels long and the other in proportion, rounded down: torchvision's Resize.
[[nodiscard]] files::Image with_shorter_side(const files::Image& image, int side);

/// `image` resampled to `width` x `height` with a triangle filter as wide as two pixels of the coarser grid: Pillow's
/// BILINEAR, bit for bit (columns first, weights in 22 bits, rounded to 8 bits between the passes).
[[nodiscard]] files::Image resized(const files::Image& image, int width, int height);

}  // namespace stagecraft::data
