#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace stagecraft {

/// A box of a tensor: the first index along each dimension, and how many.
struct TensorSlice {
  std::vector<std::int64_t> begin;
  std::vector<std::int64_t> shape;
  friend bool operator==(const TensorSlice&, const TensorSlice&) = default;
};

/// The number of elements of a tensor of `shape`: 1 without dimensions.
[[nodiscard]] std::int64_t element_count(const std::vector<std::int64_t>& shape);
/// All of a tensor of `shape`.
[[nodiscard]] TensorSlice whole_slice(const std::vector<std::int64_t>& shape);
/// Whether `slice` has the dimensions of a tensor of `shape` and lies in it.
[[nodiscard]] bool is_inside(const TensorSlice& slice, const std::vector<std::int64_t>& shape);
/// What two slices of one tensor have in common; may have no elements.
[[nodiscard]] TensorSlice common_part(const TensorSlice& a, const TensorSlice& b);
/// The slices that hold elements [first, first + count) of the flattened tensor of `shape`, in the order of their
/// elements: at most 2n - 1 for n dimensions (the rest of a row, whole rows, the beginning of a row, and so on
/// inwards). The range must lie in the tensor.
[[nodiscard]] std::vector<TensorSlice> slices_of_range(const std::vector<std::int64_t>& shape, std::int64_t first,
                                                       std::int64_t count);
/// As Python indexes a tensor: "[0:3, 64:128]".
[[nodiscard]] std::string slice_text(const TensorSlice& slice);

}  // namespace stagecraft
