#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "executor/model/model.h"

namespace stagecraft {

/// A function (step, microbatch) -> samples: the same on every rank and under every plan. A step holds the same samples
/// in the same order however many microbatches cut it. Calls from several threads at once are fine.
class DataSource {
 public:
  virtual ~DataSource() = default;
  /// One tensor for each of the model's inputs that `inputs` names by index, contiguous, on the CPU: the samples of
  /// microbatch `microbatch` of 0..microbatches-1 in step `step`, counted from 0. Its shape is the input's with
  /// `samples` put in at the batch axis; without such an axis it is the input's alone, the same tensor in every
  /// microbatch; a derived input has the shape that its function gives it.
  [[nodiscard]] virtual std::vector<at::Tensor> batch(std::int64_t step, int microbatch, int microbatches,
                                                      std::int64_t samples, std::span<const int> inputs) const = 0;
  /// Samples in one pass over the data; absent where they never end.
  [[nodiscard]] virtual std::optional<std::int64_t> samples() const { return std::nullopt; }
};

/// In which order a source gives its samples.
enum class DataOrder {
  Training,    ///< as its name says, by default in another order in each epoch
  Evaluation,  ///< in the order of the files, each sample once a pass
};

/// An entry of the table of data sources.
struct DataSourceKind {
  std::string name;
  std::string argument;  ///< what may follow the name behind a colon; empty: nothing
  std::string needed;    ///< what the argument has to name, in an error; empty: it may be absent
  std::string help;
  /// The source for `model`, whose inputs it must give all of, sample by sample; `argument` may be empty only if
  /// nothing is needed. `order_seed` decides the order of each epoch; absent for that of the files. Throws as
  /// make_data_source.
  std::function<std::unique_ptr<DataSource>(const std::string& argument, const Model& model, std::uint64_t seed,
                                            std::optional<std::uint64_t> order_seed)>
      open;
};

/// All data sources: `synthetic`, `fashion-mnist` and `fashion-mnist-test`, both also with `:DIR`, `text:FILE`,
/// `tensors:PATH` and `tensors-in-order:PATH`.
[[nodiscard]] const std::vector<DataSourceKind>& data_sources();

/// The source `name` for the inputs of `model`; `seed` decides values and order. Throws std::invalid_argument for an
/// unknown name (listing the known ones) and for a model whose inputs the data do not fit, FormatError for a file that
/// is absent or damaged.
[[nodiscard]] std::unique_ptr<DataSource> make_data_source(const std::string& name, const Model& model,
                                                           std::uint64_t seed, DataOrder order = DataOrder::Training);

}  // namespace stagecraft
