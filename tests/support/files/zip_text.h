#pragma once

#include <zlib.h>

#include <cstdint>
#include <fstream>
#include <optional>
#include <string>
#include <vector>

// ZIP archives byte by byte, so that tests can also make damaged and inconsistent ones.

namespace stagecraft::testing {

/// A stored record and its header fields.
struct ZipPart {
  std::string name;
  std::string bytes;
  int method = 0;
  int flags = 0;  ///< bit 3: the local header has no CRC or sizes; they follow the data
  std::optional<std::uint32_t> crc = {};
  std::optional<std::string> local_name = {};
  std::optional<std::uint32_t> stored_bytes = {};  ///< both sizes, in the directory and the local header
  std::optional<std::uint32_t> whole_bytes = {};   ///< before compression
  std::optional<std::uint32_t> header_at = {};     ///< offset of the local header according to the directory
};

inline std::string little_endian(std::uint64_t value, int bytes) {
  std::string out;
  for (int i = 0; i < bytes; ++i) out += static_cast<char>(i < 8 ? value >> (8 * i) & 0xff : 0);
  return out;
}

/// An archive whose data is aligned to 64 bytes, as by PyTorch; `wide` adds zip64's end records.
inline std::string zip_text(const std::vector<ZipPart>& parts, bool wide = false, const std::string& comment = "") {
  std::string out;
  std::string directory;
  for (const ZipPart& part : parts) {
    const std::string local_name = part.local_name.value_or(part.name);
    const auto found =
        static_cast<std::uint32_t>(::crc32_z(0, reinterpret_cast<const Bytef*>(part.bytes.data()), part.bytes.size()));
    const auto stored = part.stored_bytes.value_or(static_cast<std::uint32_t>(part.bytes.size()));
    const std::string sums = little_endian(part.crc.value_or(found), 4) + little_endian(stored, 4) +
                             little_endian(part.whole_bytes.value_or(stored), 4);
    const std::string begin = little_endian(20, 2) + little_endian(static_cast<std::uint64_t>(part.flags), 2) +
                              little_endian(static_cast<std::uint64_t>(part.method), 2) + little_endian(0, 4);
    const bool later = (part.flags & 8) != 0;
    const std::size_t at = out.size();
    const std::size_t padding = (64 - (at + 30 + local_name.size() + 4) % 64) % 64;
    out += "PK\3\4" + begin + (later ? std::string(12, '\0') : sums) + little_endian(local_name.size(), 2) +
           little_endian(padding + 4, 2) + local_name + "FB" + little_endian(padding, 2) + std::string(padding, 'Z') +
           part.bytes;
    if (later) out += "PK\7\10" + sums;
    directory += "PK\1\2" + little_endian(20, 2) + begin + sums + little_endian(part.name.size(), 2) +
                 little_endian(0, 12) + little_endian(part.header_at.value_or(at), 4) + part.name;
  }
  const std::size_t at = out.size();
  out += directory;
  if (wide) {
    const std::size_t end = out.size();
    out += "PK\6\6" + little_endian(44, 8) + little_endian(45, 4) + little_endian(0, 8) +
           little_endian(parts.size(), 8) + little_endian(parts.size(), 8) + little_endian(directory.size(), 8) +
           little_endian(at, 8) + "PK\6\7" + little_endian(0, 4) + little_endian(end, 8) + little_endian(1, 4);
  }
  return out + "PK\5\6" + little_endian(0, 4) + little_endian(parts.size(), 2) + little_endian(parts.size(), 2) +
         little_endian(directory.size(), 4) + little_endian(at, 4) + little_endian(comment.size(), 2) + comment;
}

/// Does not sync to disk, because tests write thousands of damaged archives.
inline void write_bytes(const std::string& path, const std::string& bytes) {
  std::ofstream(path, std::ios::binary) << bytes;
}

}  // namespace stagecraft::testing
