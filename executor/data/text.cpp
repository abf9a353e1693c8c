#include <ATen/ops/from_blob.h>
#include <fmt/format.h>

#include "costmodel/errors.h"
#include "costmodel/format/files/files.h"
#include "executor/data/sources.h"

namespace stagecraft::data {
namespace {

constexpr std::int64_t kByteValues = 256;

/// Windows of the bytes of `file`: a byte is a token.
std::unique_ptr<DataSource> text_source(const std::string& file, const model::Model& model,
                                        std::optional<std::uint64_t> seed) {
  const std::int64_t sequence = sequence_of("text", model);
  for (const model::ModelInput& input : model.inputs)
    if (input.classes < kByteValues)
      throw InputError(ErrorKind::DataMismatch,
                       fmt::format("data source text gives {0} tokens, model {1} has {2}: set vocabulary={0}",
                                   kByteValues, model.name, input.classes));
  const auto bytes = std::make_shared<std::string>(format::read_text(file));
  const auto count = static_cast<std::int64_t>(bytes->size());
  if (count < sequence + 1)
    throw FormatError(ErrorKind::DataMismatch,
                      fmt::format("{}: {} bytes, must be at least {}, one more than sequence={} of model {}", file,
                                  count, sequence + 1, sequence, model.name));
  return token_windows(
      at::from_blob(bytes->data(), {count}, [bytes](void*) {}, at::TensorOptions().dtype(at::kByte)), sequence, seed);
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
