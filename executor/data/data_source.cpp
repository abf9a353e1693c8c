#include "executor/data/data_source.h"

#include <c10/util/Exception.h>
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <stdexcept>
#include <utility>

#include "costmodel/errors.h"
#include "executor/data/sources.h"
#include "executor/device/program.h"

namespace stagecraft {
namespace {

constexpr const char* kFashionMnistDirectory = "/usr/share/datasets/fashion-mnist";

/// The source `name` for inputs that it gives all by itself, sample by sample.
std::unique_ptr<DataSource> open_source(const std::string& name, const Model& model, std::uint64_t seed,
                                        DataOrder order) {
  const auto order_seed = order == DataOrder::Training ? std::optional(seed) : std::nullopt;
  const std::size_t colon = name.find(':');
  const std::string kind = name.substr(0, colon);
  const std::string argument = colon == std::string::npos ? "" : name.substr(colon + 1);
  if (kind == "synthetic") {
    if (colon != std::string::npos)
      throw std::invalid_argument(fmt::format("data source \"{}\": synthetic takes nothing behind a colon", name));
    return synthetic_source(model, seed);
  }
  if (kind == "fashion-mnist" || kind == "fashion-mnist-test") {
    return fashion_mnist_source(argument.empty() ? kFashionMnistDirectory : argument, kind == "fashion-mnist-test",
                                model, order_seed);
  }
  if (kind == "tensors" || kind == "tensors-in-order") {
    if (argument.empty())
      throw std::invalid_argument(fmt::format("data source \"{0}\": must name files, as {0}:PATH", kind));
    return tensors_source(kind, argument, model, kind == "tensors-in-order" ? std::nullopt : order_seed);
  }
  if (kind == "text") {
    if (argument.empty())
      throw std::invalid_argument(fmt::format("data source \"{}\": must name a file, as text:FILE", name));
    return text_source(argument, model, order_seed);
  }
  std::vector<std::string> known;
  for (const DataSourceKind& each : data_sources()) known.push_back(each.name);
  throw std::invalid_argument(unknown_name("data source", kind, known));
}

/// Another source whose errors name the data.
class NamingErrors : public DataSource {
 public:
  explicit NamingErrors(std::unique_ptr<DataSource> inner) : inner_(std::move(inner)) {}

  std::vector<at::Tensor> batch(std::int64_t step, int microbatch, int microbatches, std::int64_t samples,
                                std::span<const int> inputs) const override {
    try {
      return inner_->batch(step, microbatch, microbatches, samples, inputs);
    } catch (const c10::Error& e) { rethrow_at(fmt::format("data of a microbatch of {} samples", samples), e); }
  }

  std::optional<std::int64_t> samples() const override { return inner_->samples(); }

 private:
  std::unique_ptr<DataSource> inner_;
};

}  // namespace

const std::vector<DataSourceKind>& data_sources() {
  static const std::vector<DataSourceKind> sources{
      {"synthetic", "", "random values that fit any model"},
      {"fashion-mnist", "DIR", "60000 images of clothing, from Debian's package dataset-fashion-mnist or from DIR"},
      {"fashion-mnist-test", "DIR", "the 10000 images for tests beside them, for evaluation"},
      {"tensors", "PATH",
       "tensors by the inputs' names, in an order of its own each epoch: a .safetensors file, a folder with NAME.npy for "
       "each, or NAME=FILE.npy,NAME=FILE.npy"},
      {"tensors-in-order", "PATH", "the same samples in the order of the files"},
      {"text", "FILE", "the bytes of FILE as tokens, the next byte as target"},
  };
  return sources;
}

std::unique_ptr<DataSource> make_data_source(const std::string& name, const Model& model, std::uint64_t seed,
                                             DataOrder order) {
  return std::make_unique<NamingErrors>(arranged_source(open_source(name, without_derived(model), seed, order), model));
}

std::string describe_inputs(const Model& model) {
  std::vector<std::string> parts;
  for (const ModelInput& input : model.inputs)
    parts.push_back(fmt::format("{} {}[{}]", input.name, input.dtype, fmt::join(input.shape, ", ")));
  return fmt::format("{}", fmt::join(parts, ", "));
}

}  // namespace stagecraft
