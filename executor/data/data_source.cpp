#include "executor/data/data_source.h"

#include <c10/util/Exception.h>
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <filesystem>
#include <stdexcept>
#include <utility>

#include "costmodel/errors.h"
#include "executor/data/sources.h"
#include "executor/device/machine/program.h"

namespace stagecraft::data {
namespace {

/// The entry of the table for `name`, and what follows the colon.
std::pair<const DataSourceKind*, std::string> kind_and_argument(const std::string& name) {
  const std::size_t colon = name.find(':');
  const std::string word = name.substr(0, colon);
  const std::string argument = colon == std::string::npos ? "" : name.substr(colon + 1);
  const auto kind = std::ranges::find(data_sources(), word, &DataSourceKind::name);
  if (kind == data_sources().end()) throw InputError(ErrorKind::UnknownName, unknown_source_text(name));
  if (kind->argument.empty() && colon != std::string::npos)
    throw std::invalid_argument(fmt::format("data source \"{}\": {} takes no argument", name, word));
  if (!kind->needed.empty() && argument.empty()) {
    throw std::invalid_argument(
        fmt::format("data source \"{0}\" needs {1}, as in {0}:{2}", word, kind->needed, kind->argument));
  }
  return {&*kind, argument};
}

/// The source `name`, for inputs that it provides itself, sample by sample.
std::unique_ptr<DataSource> open_source(const std::string& name, const model::Model& model, std::uint64_t seed,
                                        DataOrder order) {
  const auto [kind, argument] = kind_and_argument(name);
  return kind->open(argument, model, seed, order == DataOrder::Training ? std::optional(seed) : std::nullopt);
}

/// Wraps a source so that its errors name the data.
class NamingErrors : public DataSource {
 public:
  explicit NamingErrors(std::unique_ptr<DataSource> inner) : inner_(std::move(inner)) {}

  std::vector<at::Tensor> batch(std::int64_t step, int microbatch, int microbatches, std::int64_t samples,
                                std::span<const int> inputs) const override {
    try {
      return inner_->batch(step, microbatch, microbatches, samples, inputs);
    } catch (const c10::Error& e) { device::rethrow_at(fmt::format("data of a microbatch of {} samples", samples), e); }
  }

  std::optional<std::int64_t> samples() const override { return inner_->samples(); }

 private:
  std::unique_ptr<DataSource> inner_;
};

}  // namespace

// The table. Each source file provides its entries.
DataSourceKind synthetic_data();
DataSourceKind fashion_mnist_data();
DataSourceKind fashion_mnist_test_data();
DataSourceKind tensors_data();
DataSourceKind tensors_in_order_data();
DataSourceKind text_data();
DataSourceKind tokens_data();
DataSourceKind images_data();

const std::vector<DataSourceKind>& data_sources() {
  static const std::vector<DataSourceKind> sources{
      synthetic_data(), fashion_mnist_data(),    fashion_mnist_test_data(),
      tensors_data(),   tensors_in_order_data(), text_data(),
      tokens_data(),    images_data(),
  };
  return sources;
}

std::string unknown_source_text(const std::string& name) {
  const std::string kind = name.substr(0, name.find(':'));
  std::vector<std::string> known;
  for (const DataSourceKind& source : data_sources()) known.push_back(source.name);
  if (std::ranges::find(known, kind) != known.end()) return "";
  const std::string hint = std::filesystem::is_regular_file(name)
                               ? fmt::format("a file needs its kind first, as in tensors:{}; ", name)
                               : "";
  return hint + unknown_name("data source", kind, known);
}

std::unique_ptr<DataSource> make_data_source(const std::string& name, const model::Model& model, std::uint64_t seed,
                                             DataOrder order) {
  return std::make_unique<NamingErrors>(arranged_source(open_source(name, without_derived(model), seed, order), model));
}

std::vector<std::string> data_files(const std::string& name) {
  const auto [kind, argument] = kind_and_argument(name);
  return kind->files ? kind->files(argument) : std::vector<std::string>();
}

std::string describe_inputs(const model::Model& model) {
  std::vector<std::string> parts;
  for (const model::ModelInput& input : model.inputs)
    parts.push_back(fmt::format("{} {}[{}]", input.name, input.dtype, fmt::join(input.shape, ", ")));
  return fmt::format("{}", fmt::join(parts, ", "));
}

}  // namespace stagecraft::data
