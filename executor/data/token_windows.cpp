#include <ATen/Dispatch.h>
#include <ATen/ops/empty.h>
#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "costmodel/errors.h"
#include "executor/data/sources.h"

namespace stagecraft::data {
namespace {

class TokenWindows : public DataSource {
 public:
  TokenWindows(at::Tensor tokens, std::int64_t sequence, std::optional<std::uint64_t> seed)
      : tokens_(std::move(tokens)), sequence_(sequence), seed_(seed) {}

  std::vector<at::Tensor> batch(std::int64_t step, int microbatch, int microbatches, std::int64_t samples,
                                std::span<const int> inputs) const override {
    const std::int64_t first = (step * microbatches + microbatch) * samples;
    std::vector<at::Tensor> out;
    for (const int input : inputs) {
      at::Tensor windows = at::empty({samples, sequence_}, at::TensorOptions().dtype(at::kLong));
      AT_DISPATCH_INTEGRAL_TYPES(tokens_.scalar_type(), "token_windows", [&] {
        const scalar_t* const tokens = tokens_.const_data_ptr<scalar_t>() + (input == kTarget ? 1 : 0);
        std::int64_t* to = windows.mutable_data_ptr<std::int64_t>();
        for (std::int64_t i = 0; i < samples; ++i) to = std::copy_n(tokens + place(first + i), sequence_, to);
      });
      out.push_back(std::move(windows));
    }
    return out;
  }

  std::optional<std::int64_t> samples() const override { return (tokens_.numel() - 1) / sequence_; }

 private:
  static constexpr int kTarget = 1;  ///< index of the input that is one token ahead

  /// Where the `index`-th window of a run begins.
  std::int64_t place(std::int64_t index) const {
    if (!seed_) return index % *samples() * sequence_;
    const auto places = static_cast<std::uint64_t>(tokens_.numel() - sequence_);
    return static_cast<std::int64_t>(model::mix_seed(*seed_, "window", static_cast<std::uint64_t>(index)) % places);
  }

  at::Tensor tokens_;
  std::int64_t sequence_;
  std::optional<std::uint64_t> seed_;
};

}  // namespace

std::int64_t sequence_of(const std::string& kind, const model::Model& model) {
  const std::vector<model::ModelInput>& inputs = model.inputs;
  const auto is_text = [](const model::ModelInput& input) { return input.dtype == "int64" && input.shape.size() == 1; };
  const bool has_tokens = !inputs.empty() && is_text(inputs[0]) && inputs[0].name != "target";
  const bool has_target = inputs.size() == 2 && is_text(inputs[1]) && inputs[1].name == "target" && has_tokens &&
                          inputs[0].shape == inputs[1].shape;
  if (!has_tokens || (inputs.size() != 1 && !has_target))
    throw InputError(ErrorKind::DataMismatch,
                     fmt::format("data source {} gives tokens int64[sequence] and, if the model has such an input, "
                                 "target int64[sequence]; model {} needs {}",
                                 kind, model.name, describe_inputs(model)));
  return inputs[0].shape[0];
}

std::unique_ptr<DataSource> token_windows(at::Tensor tokens, std::int64_t sequence, std::optional<std::uint64_t> seed) {
  return std::make_unique<TokenWindows>(std::move(tokens), sequence, seed);
}

}  // namespace stagecraft::data
