#include "executor/files/image_file.h"

#include <fmt/format.h>

#include <algorithm>
#include <stdexcept>
#include <string_view>

#include "costmodel/errors.h"

namespace stagecraft::files {
namespace {

using namespace std::string_view_literals;

/// What contents that begin so are, if not JPEG or PNG.
std::string described(const std::string& bytes) {
  if (bytes.empty()) return "empty";
  if (bytes.starts_with("GIF8")) return "a GIF image";
  if (bytes.starts_with("BM")) return "a BMP image";
  if (bytes.starts_with("II*\0"sv) || bytes.starts_with("MM\0*"sv)) return "a TIFF image";
  if (bytes.starts_with("RIFF") && bytes.size() >= 12 && bytes.compare(8, 4, "WEBP") == 0) return "a WebP image";
  std::string first;
  for (const char byte : bytes.substr(0, 4))
    first += fmt::format("{}{:02x}", first.empty() ? "" : " ", static_cast<unsigned char>(byte));
  return "begins with " + first;
}

}  // namespace

Image empty_image(std::uint32_t width, std::uint32_t height) {
  if (width == 0 || height == 0 || std::int64_t{width} * height > kMostImagePixels)
    throw std::runtime_error(
        fmt::format("{} x {} pixels, must be at least 1 and at most {}", width, height, kMostImagePixels));
  const std::size_t bytes = std::size_t{3} * width * height;
  return {
      .width = static_cast<int>(width), .height = static_cast<int>(height), .pixels = std::vector<std::uint8_t>(bytes)};
}

Image parse_image(const std::string& bytes, const std::string& file) {
  const bool jpeg = bytes.starts_with("\xff\xd8\xff");
  const bool png = bytes.starts_with("\x89PNG\r\n\x1a\n");
  if (!jpeg && !png)
    throw FormatError(ErrorKind::DamagedData,
                      fmt::format("{}: {}, must be a JPEG or PNG image", file, described(bytes)));
  try {
    return jpeg ? parse_jpeg(bytes) : parse_png(bytes);
  } catch (const std::runtime_error& e) {
    throw FormatError(ErrorKind::DamagedData, fmt::format("{}: {} image: {}", file, jpeg ? "JPEG" : "PNG", e.what()));
  }
}

}  // namespace stagecraft::files
