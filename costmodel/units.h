#pragma once

#include <cstdint>

namespace stagecraft {

/// A physical quantity in one base unit, so that no conversion factor exists inside the program.
/// `Tag` names the quantity, `Rep` is its number. Quantities of one kind add, subtract, compare and divide to a plain
/// ratio; products and quotients between kinds are the free operators below.
template <class Tag, class Rep>
struct Quantity {
  Rep value{};

  constexpr Quantity() = default;
  constexpr explicit Quantity(Rep v) : value(v) {}

  // One comparison each. g++ 12 compiles <=> to two, because numbers that are not finite make the order partial.
  friend constexpr bool operator==(Quantity a, Quantity b) { return a.value == b.value; }
  friend constexpr bool operator<(Quantity a, Quantity b) { return a.value < b.value; }
  friend constexpr bool operator>(Quantity a, Quantity b) { return a.value > b.value; }
  friend constexpr bool operator<=(Quantity a, Quantity b) { return a.value <= b.value; }
  friend constexpr bool operator>=(Quantity a, Quantity b) { return a.value >= b.value; }
  constexpr Quantity operator-() const { return Quantity(-value); }
  constexpr Quantity& operator+=(Quantity other) {
    value += other.value;
    return *this;
  }
  constexpr Quantity& operator-=(Quantity other) {
    value -= other.value;
    return *this;
  }
  friend constexpr Quantity operator+(Quantity a, Quantity b) { return Quantity(a.value + b.value); }
  friend constexpr Quantity operator-(Quantity a, Quantity b) { return Quantity(a.value - b.value); }
};

/// Seconds.
using Seconds = Quantity<struct SecondsTag, double>;
/// Bytes, a 64-bit integer.
using Bytes = Quantity<struct BytesTag, std::int64_t>;
/// Bytes per second.
using BytesPerSecond = Quantity<struct BytesPerSecondTag, double>;
/// Floating-point operations, counting a fused multiply-add as two.
using Flops = Quantity<struct FlopsTag, double>;
/// Floating-point operations per second.
using FlopsPerSecond = Quantity<struct FlopsPerSecondTag, double>;

constexpr Seconds operator*(Seconds a, double factor) { return Seconds(a.value * factor); }
constexpr Seconds operator*(double factor, Seconds a) { return a * factor; }
constexpr Seconds operator/(Seconds a, double divisor) { return Seconds(a.value / divisor); }
constexpr double operator/(Seconds a, Seconds b) { return a.value / b.value; }

/// An integer multiple, exact.
constexpr Bytes operator*(Bytes a, std::int64_t factor) { return Bytes(a.value * factor); }
constexpr Bytes operator*(std::int64_t factor, Bytes a) { return a * factor; }
constexpr double operator/(Bytes a, Bytes b) { return static_cast<double>(a.value) / static_cast<double>(b.value); }

constexpr Seconds operator/(Bytes data, BytesPerSecond rate) {
  return Seconds(static_cast<double>(data.value) / rate.value);
}
constexpr BytesPerSecond operator/(Bytes data, Seconds time) {
  return BytesPerSecond(static_cast<double>(data.value) / time.value);
}
constexpr BytesPerSecond operator*(BytesPerSecond rate, double factor) { return BytesPerSecond(rate.value * factor); }
constexpr BytesPerSecond operator/(BytesPerSecond rate, double divisor) { return BytesPerSecond(rate.value / divisor); }
constexpr Seconds operator/(Flops work, FlopsPerSecond rate) { return Seconds(work.value / rate.value); }
constexpr double operator/(FlopsPerSecond a, FlopsPerSecond b) { return a.value / b.value; }

inline namespace literals {
constexpr Seconds operator""_s(long double v) { return Seconds(static_cast<double>(v)); }
constexpr Seconds operator""_s(unsigned long long v) { return Seconds(static_cast<double>(v)); }
constexpr Seconds operator""_ms(long double v) { return Seconds(static_cast<double>(v) * 1e-3); }
constexpr Seconds operator""_ms(unsigned long long v) { return Seconds(static_cast<double>(v) * 1e-3); }
constexpr Seconds operator""_us(long double v) { return Seconds(static_cast<double>(v) * 1e-6); }
constexpr Seconds operator""_us(unsigned long long v) { return Seconds(static_cast<double>(v) * 1e-6); }
constexpr Bytes operator""_B(unsigned long long v) { return Bytes(static_cast<std::int64_t>(v)); }
constexpr Bytes operator""_KiB(unsigned long long v) { return Bytes(static_cast<std::int64_t>(v) << 10); }
constexpr Bytes operator""_MiB(unsigned long long v) { return Bytes(static_cast<std::int64_t>(v) << 20); }
constexpr Bytes operator""_GiB(unsigned long long v) { return Bytes(static_cast<std::int64_t>(v) << 30); }
constexpr BytesPerSecond operator""_Bps(long double v) { return BytesPerSecond(static_cast<double>(v)); }
constexpr BytesPerSecond operator""_GBps(unsigned long long v) { return BytesPerSecond(static_cast<double>(v) * 1e9); }
}  // namespace literals

}  // namespace stagecraft
