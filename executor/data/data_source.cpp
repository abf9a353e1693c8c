#include "executor/data/data_source.h"

#include <c10/util/Exception.h>
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <filesystem>
#include <map>
#include <stdexcept>
#include <utility>

#include "costmodel/errors.h"
#include "costmodel/index.h"
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

namespace {

/// A permutation of 0..count-1 that `key` picks, value by value: four Feistel rounds over the next even power of two,
/// repeated until the value is in range again (Black & Rogaway, CT-RSA 2002).
std::uint64_t permuted(std::uint64_t index, std::uint64_t count, std::uint64_t key) {
  int half = 1;
  while (std::uint64_t{1} << (2 * half) < count) ++half;
  const std::uint64_t mask = (std::uint64_t{1} << half) - 1;
  do {
    std::uint64_t left = index >> half;
    std::uint64_t right = index & mask;
    for (std::uint64_t round = 0; round < 4; ++round) {
      const std::uint64_t next = left ^ (model::mix_seed(key, "round", round, right) & mask);
      left = right;
      right = next;
    }
    index = left << half | right;
  } while (index >= count);
  return index;
}

}  // namespace

std::uint64_t shuffled(std::uint64_t index, std::uint64_t count, std::uint64_t seed) {
  return permuted(index % count, count, model::mix_seed(seed, "epoch", index / count));
}

namespace {

class Arranged : public DataSource {
 public:
  Arranged(std::unique_ptr<DataSource> inner, std::vector<model::ModelInput> inputs)
      : inner_(std::move(inner)), inputs_(std::move(inputs)) {
    int next = 0;
    for (const model::ModelInput& input : inputs_) place_.push_back(input.derive ? -1 : next++);
  }

  std::vector<at::Tensor> batch(std::int64_t step, int microbatch, int microbatches, std::int64_t samples,
                                std::span<const int> inputs) const override {
    std::map<int, at::Tensor> given;  // by index among the model's inputs
    for (const int index : inputs) {
      if (at(index).derive) {
        for (const int source : at(index).sources) given.try_emplace(source);
      } else {
        given.try_emplace(index);
      }
    }
    std::vector<int> sampled;
    std::vector<int> fixed;
    for (const auto& [index, tensor] : given) (at(index).batch_axis ? sampled : fixed).push_back(index);
    fetch(sampled, step, microbatch, microbatches, samples, given);
    fetch(fixed, 0, 0, 1, 1, given);
    for (auto& [index, tensor] : given) {
      const std::optional<int>& axis = at(index).batch_axis;
      tensor = axis ? tensor.movedim(0, *axis).contiguous() : tensor.select(0, 0);
    }
    std::vector<at::Tensor> out;
    for (const int index : inputs) {
      if (!at(index).derive) {
        out.push_back(given.at(index));
        continue;
      }
      std::vector<at::Tensor> sources;
      for (const int source : at(index).sources) sources.push_back(given.at(source));
      out.push_back(at(index).derive(sources));
    }
    return out;
  }

  std::optional<std::int64_t> samples() const override { return inner_->samples(); }

 private:
  const model::ModelInput& at(int index) const { return inputs_.at(to_index(index)); }

  /// Puts the inner source's tensors for `wanted`, none of them derived, into `out`.
  void fetch(const std::vector<int>& wanted, std::int64_t step, int microbatch, int microbatches, std::int64_t samples,
             std::map<int, at::Tensor>& out) const {
    if (wanted.empty()) return;
    std::vector<int> places;
    for (const int index : wanted) places.push_back(place_[to_index(index)]);
    std::vector<at::Tensor> got = inner_->batch(step, microbatch, microbatches, samples, places);
    for (std::size_t i = 0; i < wanted.size(); ++i) out[wanted[i]] = std::move(got[i]);
  }

  std::unique_ptr<DataSource> inner_;
  std::vector<model::ModelInput> inputs_;
  std::vector<int> place_;  ///< of each input among those of the inner source; -1: derived
};

}  // namespace

model::Model without_derived(const model::Model& model) {
  model::Model out;
  out.name = model.name;
  std::ranges::copy_if(model.inputs, std::back_inserter(out.inputs),
                       [](const model::ModelInput& input) { return !input.derive; });
  return out;
}

std::unique_ptr<DataSource> arranged_source(std::unique_ptr<DataSource> inner, const model::Model& model) {
  const bool plain = std::ranges::all_of(
      model.inputs, [](const model::ModelInput& input) { return !input.derive && input.batch_axis == 0; });
  if (plain) return inner;
  return std::make_unique<Arranged>(std::move(inner), model.inputs);
}

}  // namespace stagecraft::data
