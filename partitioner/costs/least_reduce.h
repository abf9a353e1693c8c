#pragma once

#include <optional>
#include <vector>

#include "costmodel/topology.h"
#include "costmodel/units.h"
#include "partitioner/costs/byte_units.h"

namespace stagecraft::partitioner {

/// The most of the devices [first, last) that are in one group of `size`, besides group `except`.
[[nodiscard]] int most_in_group(int first, int last, int size, int except = -1);

/// A lower bound of the time to sum some bytes: fixed + per_byte * bytes. It may be below 0.
struct ReduceLine {
  Seconds fixed;
  SecondsPerByte per_byte;
};

/// The least time to sum gradients over a number n of devices of a topology: at most all_reduce_time of any n devices.
/// Remembers what depends on n alone.
class LeastReduce {
 public:
  explicit LeastReduce(const Topology& topology);

  /// Whether more devices never take less; measured curves may fall.
  [[nodiscard]] bool grows() const { return grows_; }

  /// The least time to sum `bytes` over `devices` devices, those from `first` on or, without `first`, any; 0 if no
  /// bound is known. `is_least`: a lower bound for any number of bytes from `bytes` on, for which a measured curve may
  /// give a shorter time.
  [[nodiscard]] Seconds time(Bytes bytes, int devices, bool is_least, std::optional<int> first = {}) const;
  /// The least time to sum `bytes` in parts, one after the other; 0 if no bound is known. There are at most `most`
  /// parts, and all but one have at least `part` bytes. `is_least`: a lower bound for any number of bytes from `bytes`
  /// on. `first` as above.
  [[nodiscard]] Seconds time_in_parts(Bytes bytes, int devices, Bytes part, int most, bool is_least,
                                      std::optional<int> first = {}) const;
  /// A line that is nowhere above `time` or `time_in_parts`, for up to `most_bytes` in up to `parts` parts; the zero
  /// line if measured curves may fall.
  [[nodiscard]] ReduceLine line_below(Bytes most_bytes, int devices, int parts) const;

 private:
  [[nodiscard]] ReduceLine in_groups(std::size_t level, int groups, const ReduceLine& above) const;
  [[nodiscard]] ReduceLine least_from(std::size_t level, int devices) const;
  [[nodiscard]] ReduceLine in_order_from(std::size_t level, int first, int devices) const;
  [[nodiscard]] const ReduceLine& line(int devices, std::optional<int> first = {}) const;

  std::vector<Level> levels_;
  bool nccl_ = false;
  bool grows_ = true;
  Seconds rounding_;  ///< the most by which rounding parts down to whole bytes shortens a sum
  int devices_ = 1;
  // With several levels: by devices, and by first device and devices.
  mutable std::vector<std::optional<ReduceLine>> lines_, lines_in_order_;
};

}  // namespace stagecraft::partitioner
