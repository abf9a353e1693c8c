#pragma once

#include <concepts>
#include <string>
#include <string_view>

#include "costmodel/units.h"

namespace stagecraft {

/// Parses a byte count: "16000000000", "16e9", "512MB", "1.5 GiB". Suffixes B, kB, MB, GB, TB are powers of 1000 and
/// KiB, MiB, GiB, TiB powers of 1024, case-insensitive. With a suffix a fraction rounds to the nearest byte; without
/// one the number must be an integer. Throws std::invalid_argument with what was found and expected, also for a
/// negative number and for more than 2^60 bytes.
[[nodiscard]] Bytes parse_bytes(std::string_view text);

/// For display, three digits in powers of 1024: "17 B", "1.50 GiB", "-12.0 KiB".
[[nodiscard]] std::string format_bytes(Bytes bytes);

/// For display, three digits: "1.50 s", "12.3 ms", "250 us", "3.00 ns", "4321 s", "0 s".
[[nodiscard]] std::string format_seconds(Seconds time);

/// For display, three digits: "85.2 TFLOP/s", "640 GFLOP/s".
[[nodiscard]] std::string format_rate(FlopsPerSecond rate);

/// A duration in its two largest units, to the second: "45 s", "3 min 20 s", "2 h 5 min", "4 d 3 h".
[[nodiscard]] std::string duration_text(Seconds duration);

/// "1 step", "2 steps"; `several` is the plural if it is not `one` with an s: "2 microbatches".
template <std::integral Count>
[[nodiscard]] std::string count_text(Count count, const std::string& one, const std::string& several = "") {
  return std::to_string(count) + " " + (count == 1 ? one : several.empty() ? one + "s" : several);
}

}  // namespace stagecraft
