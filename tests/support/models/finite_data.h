#pragma once

#include <ATen/ops/cat.h>

#include <optional>
#include <vector>

#include "executor/data/data_source.h"

namespace stagecraft::testing {

/// The first `samples` samples of other data, repeated.
class Finite : public data::DataSource {
 public:
  Finite(const data::DataSource& data, std::int64_t samples) : data_(data), samples_(samples) {}
  std::vector<at::Tensor> batch(std::int64_t step, int microbatch, int microbatches, std::int64_t samples,
                                std::span<const int> inputs) const override {
    std::vector<at::Tensor> out(inputs.size());
    for (std::int64_t i = 0; i < samples; ++i) {
      const std::int64_t sample = ((step * microbatches + microbatch) * samples + i) % samples_;
      std::vector<at::Tensor> one = data_.batch(sample, 0, 1, 1, inputs);
      for (std::size_t k = 0; k < one.size(); ++k) { out[k] = i == 0 ? one[k] : at::cat({out[k], one[k]}); }
    }
    return out;
  }
  std::optional<std::int64_t> samples() const override { return samples_; }

 private:
  const data::DataSource& data_;
  std::int64_t samples_;
};

}  // namespace stagecraft::testing
