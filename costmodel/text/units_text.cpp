#include "costmodel/text/units_text.h"

#include <fmt/format.h>

#include <array>
#include <cctype>
#include <charconv>
#include <cmath>
#include <cstdint>
#include <span>
#include <stdexcept>

#include "costmodel/index.h"

namespace stagecraft {
namespace {

struct Unit {
  const char* name;
  double factor;
};

constexpr std::array kByteUnits = {
    Unit{"B", 1},        Unit{"KiB", 1024.0}, Unit{"MiB", 1048576.0}, Unit{"GiB", 1073741824.0},
    Unit{"TiB", 0x1p40}, Unit{"PiB", 0x1p50}, Unit{"EiB", 0x1p60},
};
constexpr std::array kSuffixes = {
    Unit{"b", 1},        Unit{"kb", 1e3},     Unit{"mb", 1e6},     Unit{"gb", 1e9},     Unit{"tb", 1e12},
    Unit{"kib", 0x1p10}, Unit{"mib", 0x1p20}, Unit{"gib", 0x1p30}, Unit{"tib", 0x1p40},
};
constexpr std::array kRateUnits = {Unit{"FLOP/s", 1},    Unit{"kFLOP/s", 1e3},  Unit{"MFLOP/s", 1e6},
                                   Unit{"GFLOP/s", 1e9}, Unit{"TFLOP/s", 1e12}, Unit{"PFLOP/s", 1e15}};
constexpr std::array kTimeUnits = {Unit{"ns", 1e-9}, Unit{"us", 1e-6}, Unit{"ms", 1e-3}, Unit{"s", 1}};

/// `value` (not negative) in the largest unit that leaves at least 1 once rounded to three digits; `limit` is where
/// one unit ends and the next begins.
std::string three_digits(double value, std::span<const Unit> units, double limit) {
  std::size_t k = 0;
  while (k + 1 < units.size() && value / units[k].factor >= limit - 0.5) ++k;
  const double scaled = value / units[k].factor;
  const int decimals = scaled < 9.995 ? 2 : scaled < 99.95 ? 1 : 0;
  return fmt::format("{:.{}f} {}", scaled, decimals, units[k].name);
}

}  // namespace

Bytes parse_bytes(std::string_view text) {
  const auto refuse = [&](const char* why) {
    throw std::invalid_argument(
        fmt::format("found \"{}\"{}, expected a byte count such as 16000000000, 16e9, 512MB or 16GiB", text, why));
  };
  long double number = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  if (error == std::errc::result_out_of_range) refuse(", which is out of range");
  if (error != std::errc() || !std::isfinite(number)) refuse("");
  std::string suffix;
  for (const char c : text.substr(to_index(end - text.data()))) {
    if (c != ' ' || !suffix.empty()) suffix += static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
  }
  long double factor = suffix.empty() ? 1 : 0;
  for (const Unit& unit : kSuffixes) {
    if (suffix == unit.name) factor = unit.factor;
  }
  if (factor == 0) refuse("");
  if (std::signbit(number)) refuse(", which is negative");
  if (suffix.empty() && number != std::floor(number)) refuse(", which is not an integer");
  const long double bytes = std::round(number * factor);
  if (bytes > 0x1p60L) refuse(", which is more than 2^60");
  return Bytes(static_cast<std::int64_t>(bytes));
}

std::string format_bytes(Bytes bytes) {
  const auto magnitude = std::abs(static_cast<double>(bytes.value));
  const std::string sign = bytes < Bytes(0) ? "-" : "";
  if (magnitude < 1024) return sign + fmt::format("{:.0f} B", magnitude);
  return sign + three_digits(magnitude, kByteUnits, 1024);
}

std::string format_seconds(Seconds time) {
  constexpr double kShownAsZero = 0.005e-9;  // rounds to 0.00 ns
  if (std::abs(time.value) < kShownAsZero) return "0 s";
  if (!std::isfinite(time.value)) return fmt::format("{} s", time.value);
  return (time < Seconds(0) ? "-" : "") + three_digits(std::abs(time.value), kTimeUnits, 1000);
}

std::string format_rate(FlopsPerSecond rate) { return three_digits(rate.value, kRateUnits, 1000); }

std::string duration_text(Seconds duration) {
  struct Part {
    const char* name;
    std::int64_t seconds;
  };
  static constexpr std::array<Part, 4> kParts{{{"d", 86400}, {"h", 3600}, {"min", 60}, {"s", 1}}};
  const auto whole = static_cast<std::int64_t>(std::llround(duration.value));
  for (std::size_t i = 0; i + 1 < kParts.size(); ++i) {
    const auto& [name, seconds] = kParts[i];
    const auto& [next_name, next_seconds] = kParts[i + 1];
    if (whole >= seconds) {
      return fmt::format("{} {} {} {}", whole / seconds, name, whole % seconds / next_seconds, next_name);
    }
  }
  return fmt::format("{} s", whole);
}

}  // namespace stagecraft
