#include <ATen/ops/empty.h>
#include <fmt/format.h>

#include <algorithm>
#include <stdexcept>

#include "costmodel/errors.h"
#include "costmodel/format/files/files.h"
#include "executor/data/sources.h"

namespace stagecraft::data {
namespace {

constexpr std::int64_t kByteValues = 256;

class Text : public DataSource {
 public:
  Text(std::string bytes, std::int64_t sequence, int target, std::optional<std::uint64_t> seed)
      : bytes_(std::move(bytes)), sequence_(sequence), target_(target), seed_(seed) {}

  std::vector<at::Tensor> batch(std::int64_t step, int microbatch, int microbatches, std::int64_t samples,
                                std::span<const int> inputs) const override {
    const std::int64_t first = (step * microbatches + microbatch) * samples;
    std::vector<at::Tensor> out;
    for (const int input : inputs) {
      const at::Tensor tokens = at::empty({samples, sequence_}, at::TensorOptions().dtype(at::kLong));
      std::int64_t* to = tokens.mutable_data_ptr<std::int64_t>();
      for (std::int64_t sample = 0; sample < samples; ++sample) {
        const char* from = bytes_.data() + place(first + sample) + (input == target_ ? 1 : 0);
        to = std::transform(from, from + sequence_, to, [](char byte) { return static_cast<unsigned char>(byte); });
      }
      out.push_back(tokens);
    }
    return out;
  }

  std::optional<std::int64_t> samples() const override {
    return (static_cast<std::int64_t>(bytes_.size()) - 1) / sequence_;
  }

 private:
  /// Where the `index`-th window of a run begins.
  std::int64_t place(std::int64_t index) const {
    if (!seed_) return index % *samples() * sequence_;
    const auto places = static_cast<std::uint64_t>(bytes_.size()) - static_cast<std::uint64_t>(sequence_);
    return static_cast<std::int64_t>(model::mix_seed(*seed_, "window", static_cast<std::uint64_t>(index)) % places);
  }

  std::string bytes_;
  std::int64_t sequence_;
  int target_;  ///< index of the input that is one byte ahead
  std::optional<std::uint64_t> seed_;
};

/// Windows of the bytes of `file`: a byte is a token, the target is the next one. With a `seed` they begin at random
/// positions, otherwise they are consecutive.
std::unique_ptr<DataSource> text_source(const std::string& file, const model::Model& model,
                                        std::optional<std::uint64_t> seed) {
  const std::vector<model::ModelInput>& inputs = model.inputs;
  const bool fits = inputs.size() == 2 && inputs[0].dtype == "int64" && inputs[1].dtype == "int64" &&
                    inputs[0].name != "target" && inputs[1].name == "target" && inputs[0].shape.size() == 1 &&
                    inputs[0].shape == inputs[1].shape;
  if (!fits)
    throw InputError(
        ErrorKind::DataMismatch,
        fmt::format("data source text gives tokens int64[sequence], target int64[sequence]; model {} needs {}",
                    model.name, describe_inputs(model)));
  for (const model::ModelInput& input : inputs)
    if (input.classes < kByteValues)
      throw InputError(ErrorKind::DataMismatch,
                       fmt::format("data source text gives {0} tokens, model {1} has {2}: set vocabulary={0}",
                                   kByteValues, model.name, input.classes));
  std::string bytes = format::read_text(file);
  const std::int64_t sequence = inputs[0].shape[0];
  if (static_cast<std::int64_t>(bytes.size()) < sequence + 1)
    throw FormatError(ErrorKind::DataMismatch,
                      fmt::format("{}: {} bytes, must be at least {}, one more than sequence={} of model {}", file,
                                  bytes.size(), sequence + 1, sequence, model.name));
  return std::make_unique<Text>(std::move(bytes), sequence, 1, seed);
}

}  // namespace

DataSourceKind text_data() {
  return {.name = "text",
          .argument = "FILE",
          .needed = "a file",
          .help = "the bytes of FILE as tokens; the target is the next byte",
          .open = [](const std::string& file, const model::Model& model, std::uint64_t,
                     std::optional<std::uint64_t> seed) { return text_source(file, model, seed); },
          .files = [](const std::string& file) { return std::vector{file}; }};
}

}  // namespace stagecraft::data
