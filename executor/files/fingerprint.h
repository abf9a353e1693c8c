#pragma once

#include <cstdint>
#include <string>

namespace stagecraft::files {

/// Files up to this size are read as a whole for a fingerprint.
inline constexpr std::int64_t kMostRead = std::int64_t{1} << 30;

/// What ranks compare to find out whether they have the same data, in seconds for any size: "1048576 bytes, CRC-32
/// 90b5c0de". Of a file up to `most` bytes, of all its bytes; of a larger one, of blocks of 1 MiB, evenly spaced from
/// its first byte to its last, that have `most` bytes in all. Of a folder, "60000 files, CRC-32 ...": of the paths and
/// sizes of all files under it, and of the first 4 KiB of up to 1024 of them, evenly spaced. It protects against
/// mistakes, not against attacks. Throws FormatError with the path and the system's reason.
[[nodiscard]] std::string fingerprint(const std::string& path, std::int64_t most = kMostRead);

}  // namespace stagecraft::files
