#include "costmodel/slice.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstddef>
#include <functional>
#include <numeric>
#include <utility>

namespace stagecraft {

std::int64_t element_count(const std::vector<std::int64_t>& shape) {
  // The product of the other extents of a tensor without elements may be out of range.
  if (std::ranges::find(shape, 0) != shape.end()) return 0;
  return std::accumulate(shape.begin(), shape.end(), std::int64_t{1}, std::multiplies<>());
}

TensorSlice whole_slice(const std::vector<std::int64_t>& shape) {
  return {std::vector<std::int64_t>(shape.size(), 0), shape};
}

bool is_inside(const TensorSlice& slice, const std::vector<std::int64_t>& shape) {
  if (slice.begin.size() != shape.size() || slice.shape.size() != shape.size()) return false;
  for (std::size_t d = 0; d < shape.size(); ++d) {
    if (slice.begin[d] < 0 || slice.shape[d] < 0 || slice.begin[d] > shape[d] - slice.shape[d]) return false;
  }
  return true;
}

TensorSlice common_part(const TensorSlice& a, const TensorSlice& b) {
  TensorSlice out = a;
  for (std::size_t d = 0; d < out.shape.size(); ++d) {
    out.begin[d] = std::max(a.begin[d], b.begin[d]);
    const std::int64_t end = std::min(a.begin[d] + a.shape[d], b.begin[d] + b.shape[d]);
    out.shape[d] = std::max<std::int64_t>(end - out.begin[d], 0);
  }
  return out;
}

std::vector<TensorSlice> slices_of_range(const std::vector<std::int64_t>& shape, std::int64_t first,
                                         std::int64_t count) {
  std::vector<TensorSlice> out;
  for (const std::int64_t end = first + count; first < end;) {
    // The outermost dimension along which a slice can begin here and not pass the end: its steps are `step` elements.
    std::int64_t step = element_count(shape);
    std::int64_t rest = first;
    TensorSlice slice{{}, shape};
    for (std::size_t d = 0; d < shape.size(); ++d) {
      step /= shape[d];
      slice.begin.push_back(rest / step);
      rest %= step;
      slice.shape[d] = 1;
      if (rest != 0 || end - first < step) continue;
      slice.shape[d] = std::min((end - first) / step, shape[d] - slice.begin[d]);
      slice.begin.resize(shape.size(), 0);
      break;
    }
    first += element_count(slice.shape);
    out.push_back(std::move(slice));
  }
  return out;
}

std::string slice_text(const TensorSlice& slice) {
  std::string out;
  for (std::size_t d = 0; d < slice.shape.size(); ++d)
    out += fmt::format("{}{}:{}", d == 0 ? "" : ", ", slice.begin[d], slice.begin[d] + slice.shape[d]);
  return "[" + out + "]";
}

}  // namespace stagecraft
