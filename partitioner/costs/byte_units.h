#pragma once

#include "costmodel/units.h"

namespace stagecraft::partitioner {

// Quantities besides those of costmodel/units.h.

/// Bytes that need not be whole: shares and sums of published inputs, or more than 64 bits hold.
using FractionalBytes = Quantity<struct FractionalBytesTag, double>;
/// Time for each byte.
using SecondsPerByte = Quantity<struct SecondsPerByteTag, double>;

/// The same number of bytes.
[[nodiscard]] constexpr FractionalBytes fractional(Bytes bytes) {
  return FractionalBytes(static_cast<double>(bytes.value));
}

constexpr FractionalBytes operator*(FractionalBytes bytes, double factor) {
  return FractionalBytes(bytes.value * factor);
}
constexpr FractionalBytes operator*(double factor, FractionalBytes bytes) { return bytes * factor; }
constexpr FractionalBytes operator/(FractionalBytes bytes, double divisor) {
  return FractionalBytes(bytes.value / divisor);
}
constexpr double operator/(FractionalBytes a, FractionalBytes b) { return a.value / b.value; }
constexpr Seconds operator/(FractionalBytes bytes, BytesPerSecond rate) { return Seconds(bytes.value / rate.value); }
constexpr SecondsPerByte operator/(Seconds time, FractionalBytes bytes) {
  return SecondsPerByte(time.value / bytes.value);
}

constexpr SecondsPerByte operator*(SecondsPerByte cost, double factor) { return SecondsPerByte(cost.value * factor); }
constexpr SecondsPerByte operator*(double factor, SecondsPerByte cost) { return cost * factor; }
constexpr SecondsPerByte operator/(SecondsPerByte cost, double divisor) { return SecondsPerByte(cost.value / divisor); }
constexpr Seconds operator*(SecondsPerByte cost, FractionalBytes bytes) { return Seconds(cost.value * bytes.value); }
constexpr Seconds operator*(SecondsPerByte cost, Bytes bytes) { return cost * fractional(bytes); }

}  // namespace stagecraft::partitioner
