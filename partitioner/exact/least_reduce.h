#pragma once

#include <optional>
#include <vector>

#include "costmodel/topology.h"
#include "costmodel/units.h"

namespace stagecraft::partitioner {

/// No sum of so many bytes takes less than fixed + per_byte * bytes, which may be below 0.
struct ReduceLine {
  Seconds fixed;
  Seconds per_byte;
};

/// The least time to sum gradients over some devices of a topology, whichever they are: no more than all_reduce_time of
/// any of them. What depends on the number of devices alone is remembered.
class LeastReduce {
 public:
  explicit LeastReduce(const Topology& topology);

  /// Whether more devices never take less; measured curves may fall.
  [[nodiscard]] bool grows() const { return grows_; }

  /// The time of `bytes` over `devices` devices; 0 where none is known. `is_least`: there may be more bytes, for which
  /// a measured curve may fall.
  [[nodiscard]] Seconds time(Bytes bytes, int devices, bool is_least) const;
  /// The least time of sums, one after the other, of `bytes` in all, in at most `most` parts of which all but one have
  /// `part` bytes or more; 0 where none is known. `is_least`: there may be more bytes, and so more parts.
  [[nodiscard]] Seconds time_in_parts(Bytes bytes, int devices, Bytes part, int most, bool is_least) const;
  /// A line below both, for sums of up to `most_bytes`, none of which is below 0 then; 0 where measured curves may
  /// fall.
  [[nodiscard]] ReduceLine line_below(Bytes most_bytes, int devices, int parts) const;

 private:
  [[nodiscard]] ReduceLine least_from(std::size_t level, int devices) const;
  [[nodiscard]] const ReduceLine& line(int devices) const;

  std::vector<Level> levels_;
  bool trees_ = false;
  bool grows_ = true;
  Seconds rounding_;  ///< what the levels, which round their parts down to whole bytes, may take off a sum
  mutable std::vector<std::optional<ReduceLine>> lines_;  ///< by devices, with several levels
};

}  // namespace stagecraft::partitioner
