#include <ATen/CPUGeneratorImpl.h>
#include <ATen/ops/empty.h>

#include "executor/data/sources.h"

namespace stagecraft {
namespace {

class Synthetic : public DataSource {
 public:
  Synthetic(std::vector<ModelInput> inputs, std::uint64_t seed) : inputs_(std::move(inputs)), seed_(seed) {}

  std::vector<at::Tensor> batch(std::int64_t step, int microbatch, int microbatches, std::int64_t samples,
                                std::span<const int> inputs) const override {
    const std::int64_t first = (step * microbatches + microbatch) * samples;
    std::vector<at::Tensor> out;
    for (const int index : inputs) {
      const ModelInput& input = inputs_.at(static_cast<std::size_t>(index));
      std::vector<std::int64_t> shape{samples};
      shape.insert(shape.end(), input.shape.begin(), input.shape.end());
      const bool whole = input.dtype == "int64";
      const at::Tensor values = at::empty(shape, at::TensorOptions().dtype(whole ? at::kLong : at::kFloat));
      for (std::int64_t i = 0; i < samples; ++i) {
        const at::Generator generator = at::make_generator<at::CPUGeneratorImpl>(
            mix_seed(seed_, input.name, static_cast<std::uint64_t>(first + i)));
        at::Tensor sample = values.select(0, i);
        whole ? sample.random_(0, input.classes, generator) : sample.normal_(0, 1, generator);
      }
      out.push_back(values);
    }
    return out;
  }

 private:
  std::vector<ModelInput> inputs_;
  std::uint64_t seed_;
};

}  // namespace

std::unique_ptr<DataSource> synthetic_source(const Model& model, std::uint64_t seed) {
  return std::make_unique<Synthetic>(model.inputs, seed);
}

}  // namespace stagecraft
