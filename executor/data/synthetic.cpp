#include <ATen/CPUGeneratorImpl.h>
#include <ATen/ops/empty.h>
#include <fmt/format.h>

#include <limits>
#include <stdexcept>
#include <utility>

#include "costmodel/errors.h"
#include "costmodel/index.h"
#include "executor/data/data_source.h"
#include "executor/device/dtype.h"

namespace stagecraft::data {
namespace {

class Synthetic : public DataSource {
 public:
  Synthetic(std::vector<model::ModelInput> inputs, std::uint64_t seed) : inputs_(std::move(inputs)), seed_(seed) {}

  std::vector<at::Tensor> batch(std::int64_t step, int microbatch, int microbatches, std::int64_t samples,
                                std::span<const int> inputs) const override {
    const std::int64_t first = (step * microbatches + microbatch) * samples;
    std::vector<at::Tensor> out;
    for (const int index : inputs) {
      const model::ModelInput& input = inputs_.at(to_index(index));
      std::vector<std::int64_t> shape{samples};
      shape.insert(shape.end(), input.shape.begin(), input.shape.end());
      const at::Tensor values = at::empty(shape, at::TensorOptions().dtype(device::dtype_of(input.dtype)));
      for (std::int64_t i = 0; i < samples; ++i) {
        const at::Generator generator = at::make_generator<at::CPUGeneratorImpl>(
            model::mix_seed(seed_, input.name, static_cast<std::uint64_t>(first + i)));
        at::Tensor sample = values.select(0, i);
        if (values.is_floating_point()) {
          sample.normal_(0, 1, generator);
        } else if (values.scalar_type() == at::kBool) {
          sample.random_(0, 2, generator);
        } else {
          sample.random_(input.least_drawn.value_or(input.least), input.classes, generator);
        }
      }
      out.push_back(values);
    }
    return out;
  }

 private:
  std::vector<model::ModelInput> inputs_;
  std::uint64_t seed_;
};

/// The smallest and the largest value of an integer type.
std::pair<std::int64_t, std::int64_t> whole_numbers(at::ScalarType dtype) {
  const int bits = 8 * to_int(c10::elementSize(dtype));
  if (dtype == at::kByte) return {0, 255};
  const std::int64_t most = std::numeric_limits<std::int64_t>::max() >> (64 - bits);
  return {-most - 1, most};
}

/// Values drawn from the seed: Normal(1) for floating types, both values for bool, else uniform in [least, classes).
/// Throws std::invalid_argument naming an integer input without classes, or with a range that its type cannot
/// represent.
std::unique_ptr<DataSource> synthetic_source(const model::Model& model, std::uint64_t seed) {
  for (const model::ModelInput& input : model.inputs) {
    const at::ScalarType dtype = device::dtype_of(input.dtype);
    if (!at::isIntegralType(dtype, /*includeBool=*/false)) continue;
    if (input.classes == 0) {
      throw InputError(
          ErrorKind::DataMismatch,
          fmt::format("data source synthetic: integer input \"{0}\" of model {1} has no range; set one, such as "
                      "--input-range {0}=0..50257 (setting range.{0})",
                      input.name, model.name));
    }
    const auto [least, most] = whole_numbers(dtype);
    if (input.least >= input.classes || input.least < least || input.classes - 1 > most) {
      throw InputError(
          ErrorKind::DataMismatch,
          fmt::format("data source synthetic: input \"{}\" of model {} has the range {}..{}, expected one that begins "
                      "below its end and fits {}",
                      input.name, model.name, input.least, input.classes, input.dtype));
    }
  }
  return std::make_unique<Synthetic>(model.inputs, seed);
}

}  // namespace

DataSourceKind synthetic_data() {
  return {.name = "synthetic",
          .argument = "",
          .needed = "",
          .help = "random values that fit any model",
          .open = [](const std::string&, const model::Model& model, std::uint64_t seed, std::optional<std::uint64_t>) {
            return synthetic_source(model, seed);
          }};
}

}  // namespace stagecraft::data
