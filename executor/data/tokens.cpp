#include <ATen/Dispatch.h>
#include <ATen/ops/aminmax.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/from_blob.h>
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <filesystem>
#include <stdexcept>
#include <string_view>
#include <utility>

#include "costmodel/errors.h"
#include "costmodel/format/files/files.h"
#include "executor/data/data_source.h"
#include "executor/data/file_tensors.h"
#include "executor/device/dtype.h"
#include "executor/files/columns.h"

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

namespace {

/// PATH[,column=NAME].
struct TokenFiles {
  std::string path;
  std::string column;  ///< empty: not given
};

TokenFiles parse_argument(const std::string& text) {
  constexpr std::string_view kOption = ",column=";
  const std::size_t begin = text.rfind(kOption);
  if (begin == std::string::npos) {
    const std::size_t comma = text.rfind(',');
    if (comma != std::string::npos && text.find('=', comma) != std::string::npos && !std::filesystem::exists(text))
      throw std::invalid_argument(
          fmt::format("data source tokens: found \"{}\", expected PATH or PATH,column=NAME", text));
    return {text, ""};
  }
  TokenFiles out{text.substr(0, begin), text.substr(begin + kOption.size())};
  if (out.column.empty()) throw std::invalid_argument("data source tokens: column= is empty, expected a column's name");
  return out;
}

/// The column of tokens where none is named: that of the model's input, or as tokenizers of Hugging Face call it.
std::string usual_column(const std::string& path, const std::string& input) {
  const std::vector<std::string> names = files::column_names(path);
  for (const std::string& name : {input, std::string("input_ids")}) {
    if (std::ranges::find(names, name) != names.end()) return name;
  }
  throw FormatError(
      ErrorKind::DataMismatch,
      fmt::format("{}: has neither a column \"{}\" nor \"input_ids\"; add ,column=NAME, where NAME is one of {}", path,
                  input, fmt::join(names, ", ")));
}

/// All tokens of a file, one after the other, and a name of them for messages.
std::pair<at::Tensor, std::string> read_tokens(const TokenFiles& argument, const std::string& input) {
  if (files::has_columns(argument.path)) {
    const std::string name = argument.column.empty() ? usual_column(argument.path, input) : argument.column;
    return {files::read_columns(argument.path, {name}).front().values,
            fmt::format("{}: column \"{}\"", argument.path, name)};
  }
  if (!argument.column.empty())
    throw InputError(ErrorKind::DataMismatch,
                     argument.path + ": column= is for Parquet and Arrow files (.parquet, .arrow, .feather)");
  refuse_other_formats(argument.path);
  const FileTensor file = open_npy(argument.path);
  std::int64_t count = 1;
  for (const std::int64_t axis : file.shape) count *= axis;
  const std::shared_ptr<const void> owner = file.owner;
  at::Tensor bytes = file.bytes({count});
  // NumPy pads the header so that they are; other writers may not.
  const bool aligned = reinterpret_cast<std::uintptr_t>(file.values) % c10::elementSize(file.dtype) == 0;
  if (!aligned) return {bytes.clone().view(file.dtype).squeeze(-1), argument.path};
  return {at::from_blob(file.values, {count}, [owner](void*) {}, at::TensorOptions().dtype(file.dtype)), argument.path};
}

/// Throws for tokens outside the range of the inputs.
void check_tokens(const at::Tensor& tokens, const std::string& place, const model::Model& model) {
  const model::ModelInput& input = model.inputs[0];
  const model::ModelInput& target = model.inputs.back();  // the same input if there is none
  const std::int64_t least = std::max(input.least, target.least);
  const std::int64_t end = std::min(input.classes, target.classes);
  const auto outside = values_outside(tokens.unsqueeze(-1).view(at::kByte), tokens.scalar_type(), least, end);
  if (!outside) return;
  const auto [low, high] = at::aminmax(outside->second);
  const bool below = low.item<std::int64_t>() < least;
  const std::int64_t bad = (below ? low : high).item<std::int64_t>();
  std::string remedy;
  if (input.range_setting) {
    remedy = fmt::format(", or another range with --input-range {}=LOW..HIGH", input.name);
  } else if (!below) {
    remedy = fmt::format(": set vocabulary={} or more", bad + 1);
  }
  throw FormatError(ErrorKind::DataMismatch,
                    fmt::format("{}: found token {}, model {} has {}..{} (upper end excluded){}", place, bad,
                                model.name, least, end, remedy));
}

/// Windows of the tokens in a file: the rows of a column one after the other, or an array, flattened.
std::unique_ptr<DataSource> tokens_source(const std::string& text, const model::Model& model,
                                          std::optional<std::uint64_t> seed) {
  const std::int64_t sequence = sequence_of("tokens", model);
  auto [tokens, place] = read_tokens(parse_argument(text), model.inputs[0].name);
  if (!at::isIntegralType(tokens.scalar_type(), /*includeBool=*/false))
    throw FormatError(ErrorKind::DataMismatch,
                      fmt::format("{}: found {}, expected integers", place, device::dtype_text(tokens.scalar_type())));
  if (tokens.numel() < sequence + 1)
    throw FormatError(ErrorKind::DataMismatch,
                      fmt::format("{}: {} tokens, must be at least {}, one more than sequence={} of model {}", place,
                                  tokens.numel(), sequence + 1, sequence, model.name));
  check_tokens(tokens, place, model);
  return token_windows(std::move(tokens), sequence, seed);
}

}  // namespace

DataSourceKind tokens_data() {
  return {.name = "tokens",
          .argument = "PATH",
          .needed = "files",
          .help =
              "integers as tokens; the target is the next one. PATH is a .npy file, or a .parquet or .arrow file or a "
              "folder of these, whose rows are concatenated; ,column=NAME chooses a column (default: that named like "
              "the model's input, or input_ids)",
          .open = [](const std::string& path, const model::Model& model, std::uint64_t,
                     std::optional<std::uint64_t> seed) { return tokens_source(path, model, seed); },
          .files =
              [](const std::string& text) {
                const std::string path = parse_argument(text).path;
                return files::has_columns(path) ? files::column_files(path) : std::vector{path};
              }};
}

}  // namespace stagecraft::data
