#pragma once

#include <zlib.h>

#include <cstdint>
#include <string>
#include <string_view>

namespace stagecraft::testing {

/// `value` in big-endian order, as PNG has numbers.
inline std::string png_number(std::uint32_t value) {
  return {static_cast<char>(value >> 24), static_cast<char>(value >> 16), static_cast<char>(value >> 8),
          static_cast<char>(value)};
}

/// A chunk of a PNG file with its checksum.
inline std::string png_chunk(const std::string& kind, const std::string& data) {
  const std::string body = kind + data;
  const auto sum = crc32(0, reinterpret_cast<const unsigned char*>(body.data()), static_cast<unsigned>(body.size()));
  return png_number(static_cast<std::uint32_t>(data.size())) + body + png_number(static_cast<std::uint32_t>(sum));
}

/// A PNG file, made without libpng: `values` are rows of `width` x `height` pixels of PNG's colour type `type` (0 grey,
/// 2 RGB, 4 grey and alpha, 6 RGB and alpha) with `bits` bits per value.
inline std::string png_bytes(int width, int height, int type, std::string_view values, int bits = 8) {
  const std::size_t row = values.size() / static_cast<std::size_t>(height);
  std::string rows;
  for (std::size_t at = 0; at < values.size(); at += row) rows += '\0' + std::string(values.substr(at, row));
  uLongf packed_bytes = compressBound(rows.size());
  std::string packed(packed_bytes, '\0');
  compress(reinterpret_cast<unsigned char*>(packed.data()), &packed_bytes,
           reinterpret_cast<const unsigned char*>(rows.data()), rows.size());
  packed.resize(packed_bytes);
  const std::string header = png_number(static_cast<std::uint32_t>(width)) +
                             png_number(static_cast<std::uint32_t>(height)) + static_cast<char>(bits) +
                             static_cast<char>(type) + std::string(3, '\0');
  return "\x89PNG\r\n\x1a\n" + png_chunk("IHDR", header) + png_chunk("IDAT", packed) + png_chunk("IEND", "");
}

}  // namespace stagecraft::testing
