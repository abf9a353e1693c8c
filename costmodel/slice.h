#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace stagecraft {

/// A box of a tensor: the first index along each dimension, and how many.
struct Slice {
  std::vector<std::int64_t> begin;
  std::vector<std::int64_t> shape;
  friend bool operator==(const Slice&, const Slice&) = default;
};

/// The number of elements of a tensor of `shape`: 1 without dimensions.
[[nodiscard]] std::int64_t element_count(const std::vector<std::int64_t>& shape);
/// All of a tensor of `shape`.
[[nodiscard]] Slice whole_slice(const std::vector<std::int64_t>& shape);
/// Whether `slice` has the dimensions of a tensor of `shape` and lies in it.
[[nodiscard]] bool is_inside(const Slice& slice, const std::vector<std::int64_t>& shape);
/// What two slices of one tensor have in common; may have no elements.
[[nodiscard]] Slice common_part(const Slice& a, const Slice& b);
/// The slices that hold elements [first, first + count) of the flattened tensor of `shape`, in the order of their
/// elements: at most 2n - 1 for n dimensions (the rest of a row, whole rows, the beginning of a row, and so on
/// inwards). The range must lie in the tensor.
[[nodiscard]] std::vector<Slice> slices_of_range(const std::vector<std::int64_t>& shape, std::int64_t first,
                                                 std::int64_t count);
/// As Python indexes a tensor: "[0:3, 64:128]".
[[nodiscard]] std::string slice_text(const Slice& slice);

}  // namespace stagecraft
