#pragma once

#include <ATen/core/Generator.h>
#include <ATen/core/Tensor.h>

#include <cstdint>

namespace stagecraft::intake {

/// Masks of dropout from one stream of random numbers, one after the other. The generator is on the device of the
/// values, so that nothing is copied: masks are the same on all CPUs, and on all GPUs.
class MaskStream {
 public:
  explicit MaskStream(std::uint64_t seed) : seed_(seed) {}
  [[nodiscard]] std::uint64_t seed() const { return seed_; }
  /// Masks drawn so far.
  [[nodiscard]] int drawn() const { return drawn_; }
  /// `x` with each value set to zero with `probability`, and the others scaled to keep the expectation.
  [[nodiscard]] at::Tensor drop(const at::Tensor& x, double probability);
  /// Draws the mask of a tensor of `sizes`, of the type and on the device of `like`, and forgets it.
  void skip(at::IntArrayRef sizes, const at::Tensor& like, double probability);

 private:
  at::Tensor draw(at::IntArrayRef sizes, const at::Tensor& like, double keep);

  std::uint64_t seed_;
  int drawn_ = 0;
  at::Generator generator_;  ///< made by the first draw
};

}  // namespace stagecraft::intake
