#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "executor/model/model.h"

namespace stagecraft::data {

/// A function (step, microbatch) -> samples: the same on every rank and under every plan. A step has the same samples
/// in the same order for any number of microbatches. Thread-safe.
class DataSource {
 public:
  virtual ~DataSource() = default;
  /// One tensor for each of the model's inputs that `inputs` names by index, contiguous, on the CPU: the samples of
  /// microbatch `microbatch` of 0..microbatches-1 in step `step`, counted from 0. Its shape is that of the input with
  /// `samples` inserted at the batch axis. Without a batch axis it is that of the input, with the same tensor in every
  /// microbatch. A derived input has the shape that its function returns.
  [[nodiscard]] virtual std::vector<at::Tensor> batch(std::int64_t step, int microbatch, int microbatches,
                                                      std::int64_t samples, std::span<const int> inputs) const = 0;
  /// Samples in one pass over the data; absent if the data is endless.
  [[nodiscard]] virtual std::optional<std::int64_t> samples() const { return std::nullopt; }
};

/// Order of samples.
enum class DataOrder {
  Training,    ///< as the source's name says; by default shuffled every epoch
  Evaluation,  ///< in file order, each sample once per pass
};

/// An entry of the table of data sources.
struct DataSourceKind {
  std::string name;
  std::string argument;  ///< argument after the name and a colon; empty: none
  std::string needed;    ///< what the argument must name, for errors; empty: optional
  std::string help;
  /// The source for `model`, all of whose inputs it must provide, sample by sample. `argument` may only be empty if it
  /// is optional. `order_seed` determines the order of each epoch; absent for file order. Throws as make_data_source
  /// does.
  std::function<std::unique_ptr<DataSource>(const std::string& argument, const model::Model& model, std::uint64_t seed,
                                            std::optional<std::uint64_t> order_seed)>
      open;
  /// The files that the source of this argument reads, in a fixed order; for images the folder that holds them. Files
  /// need not exist. Unset: none.
  std::function<std::vector<std::string>(const std::string& argument)> files = nullptr;
};

/// All data sources: `synthetic`, `fashion-mnist` and `fashion-mnist-test`, both also with `:DIR`, `text:FILE`,
/// `tokens:PATH`, `tensors:PATH`, `tensors-in-order:PATH` and `images:FOLDER`.
[[nodiscard]] const std::vector<DataSourceKind>& data_sources();

/// The source `name` for the inputs of `model`; `seed` determines values and order. Throws std::invalid_argument for an
/// unknown name (listing the known ones) and if the data does not fit the model's inputs, FormatError for a missing or
/// damaged file.
[[nodiscard]] std::unique_ptr<DataSource> make_data_source(const std::string& name, const model::Model& model,
                                                           std::uint64_t seed, DataOrder order = DataOrder::Training);

/// Why the kind of source `name` is unknown, listing the known ones; a file without its kind gets an example. Empty if
/// the kind is known.
[[nodiscard]] std::string unknown_source_text(const std::string& name);

/// DataSourceKind::files of the source `name`. Throws std::invalid_argument for an unknown name and a wrong argument,
/// as make_data_source does.
[[nodiscard]] std::vector<std::string> data_files(const std::string& name);

// Helpers shared by the data sources.

/// The position among `count` samples of the `index`-th sample of a run that shuffles every epoch.
[[nodiscard]] std::uint64_t shuffled(std::uint64_t index, std::uint64_t count, std::uint64_t seed);

/// The name of `model` and those of its inputs that a source must provide, as DataSourceKind::open takes them.
[[nodiscard]] model::Model without_derived(const model::Model& model);
/// DataSource::batch for all inputs of `model` from `inner`, which provides those of without_derived, in their order
/// and each as [samples, shape...]: moves the batch axis to its place, takes the first sample for an input without a
/// batch axis, and computes derived inputs from their sources. `inner` only loads what this needs.
[[nodiscard]] std::unique_ptr<DataSource> arranged_source(std::unique_ptr<DataSource> inner, const model::Model& model);

/// "image float32[1, 28, 28], target int64[]": the inputs of `model`.
[[nodiscard]] std::string describe_inputs(const model::Model& model);

/// The sequence length of a model that data source `kind` can train: its inputs are tokens int64[sequence], under any
/// name, and target int64[sequence], or tokens alone, which an exported next_token model shifts itself. Throws
/// InputError for another model.
[[nodiscard]] std::int64_t sequence_of(const std::string& kind, const model::Model& model);
/// Windows of a text for such a model: the target is the token after each. `tokens` are contiguous integers of one
/// axis, more than `sequence`. With a `seed` windows begin at random positions, otherwise they are consecutive.
[[nodiscard]] std::unique_ptr<DataSource> token_windows(at::Tensor tokens, std::int64_t sequence,
                                                        std::optional<std::uint64_t> seed);

/// Why this build cannot read images; empty if it can.
[[nodiscard]] std::string why_no_images();

}  // namespace stagecraft::data
