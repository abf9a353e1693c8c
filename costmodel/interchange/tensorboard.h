#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace stagecraft::interchange {

/// A number in one of TensorBoard's charts, which has the name `tag`. Stored in single precision.
struct TensorBoardScalar {
  std::string tag;
  double value = 0;
};

// An event file is a sequence of TFRecord records: the length, its checksum, an Event from TensorFlow's event.proto,
// its checksum. `wall_time` is in seconds since 1970.

/// The first record of every event file.
[[nodiscard]] std::string tensorboard_header(double wall_time);
/// A record that says that a program begins again after step `step`: TensorBoard drops later steps of earlier files.
[[nodiscard]] std::string tensorboard_restart(double wall_time, std::int64_t step);
/// A record of numbers after step `step`.
[[nodiscard]] std::string tensorboard_record(double wall_time, std::int64_t step,
                                             const std::vector<TensorBoardScalar>& scalars);

/// CRC-32C (Castagnoli) of `bytes`, as in RFC 3720, appendix B.4.
[[nodiscard]] std::uint32_t crc32c(std::string_view bytes);

}  // namespace stagecraft::interchange
