#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace stagecraft::files {

/// An image of 8-bit RGB, row by row from the top: 3 * width * height bytes.
struct Image {
  int width = 0;
  int height = 0;
  std::vector<std::uint8_t> pixels;
  friend bool operator==(const Image&, const Image&) = default;
};

/// Most pixels that an image may have: where Pillow refuses one as a decompression bomb.
inline constexpr std::int64_t kMostImagePixels = 178'956'970;

/// The image in `bytes`, the contents of `file`: JPEG or PNG, distinguished by the first bytes. Converted as Pillow's
/// convert("RGB") does: grey values three times, palettes by their colours, alpha dropped, the high byte of 16 bits,
/// CMYK as Adobe writes it. EXIF orientation and gamma are ignored. Throws FormatError that begins with `file` for
/// other contents, for a damaged or truncated image, for 16-bit grey without alpha (which Pillow cuts off at 255) and
/// for more than kMostImagePixels pixels.
[[nodiscard]] Image parse_image(const std::string& bytes, const std::string& file);

// The parts of parse_image. They return the image in `bytes`, or throw std::runtime_error with what is wrong.

[[nodiscard]] Image parse_jpeg(const std::string& bytes);
[[nodiscard]] Image parse_png(const std::string& bytes);

/// Space for an image of this size; throws as parse_image does if it is too large.
[[nodiscard]] Image empty_image(std::uint32_t width, std::uint32_t height);

}  // namespace stagecraft::files
