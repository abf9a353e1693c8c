#include <ATen/ops/empty.h>
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <optional>
#include <utility>

#include "costmodel/errors.h"
#include "costmodel/index.h"
#include "executor/data/data_source.h"
#include "executor/data/file_tensors.h"
#include "executor/device/dtype.h"

namespace stagecraft::data {
namespace {

std::string spec_text(const std::string& dtype, const std::vector<std::string>& shape) {
  return fmt::format("{}[{}]", dtype, fmt::join(shape, ", "));
}

/// Throws unless type and shape are the input's, whatever the number of samples.
void check_shape(const FileTensor& tensor, const model::ModelInput& input) {
  std::vector<std::int64_t> without = tensor.shape;
  const std::optional<int>& axis = tensor.sample_axis;
  const bool has_axis = !axis || to_index(*axis) < tensor.shape.size();
  if (axis && has_axis) without.erase(without.begin() + *axis);
  if (has_axis && without == input.shape && device::dtype_name(tensor.dtype) == input.dtype) return;
  std::vector<std::string> found;
  std::vector<std::string> wanted;
  for (const std::int64_t size : tensor.shape) found.push_back(std::to_string(size));
  for (const std::int64_t size : input.shape) wanted.push_back(std::to_string(size));
  if (axis) wanted.insert(wanted.begin() + *axis, "samples");
  throw FormatError(ErrorKind::DataMismatch,
                    fmt::format("{}: input \"{}\": found {}, expected {}", tensor.path, input.name,
                                spec_text(device::dtype_name(tensor.dtype), found), spec_text(input.dtype, wanted)));
}

/// Throws for the first value that is outside [least, end), `wanted` in words.
void check_range(const FileTensor& tensor, const model::ModelInput& input, std::int64_t least, std::int64_t end,
                 const std::string& wanted) {
  std::int64_t count = 1;
  for (const std::int64_t axis : tensor.shape) count *= axis;
  const at::ScalarType type = tensor.dtype == at::kBool ? at::kByte : tensor.dtype;
  const auto outside = values_outside(tensor.bytes({count}), type, least, end);
  if (!outside) return;
  const auto& [first, values] = *outside;
  const std::int64_t* const begin = values.const_data_ptr<std::int64_t>();
  const std::int64_t* const bad =
      std::find_if(begin, begin + values.numel(), [&](std::int64_t value) { return value < least || value >= end; });
  std::vector<std::int64_t> place;
  std::int64_t rest = first + (bad - begin);
  for (auto axis = tensor.shape.rbegin(); axis != tensor.shape.rend(); ++axis) {
    place.insert(place.begin(), rest % *axis);
    rest /= *axis;
  }
  throw FormatError(ErrorKind::DataMismatch, fmt::format("{}: input \"{}\": found {} at [{}], expected {}", tensor.path,
                                                         input.name, *bad, fmt::join(place, ", "), wanted));
}

class Tensors : public DataSource {
 public:
  Tensors(std::vector<FileTensor> tensors, std::vector<model::ModelInput> inputs, std::int64_t count,
          std::optional<std::uint64_t> seed)
      : tensors_(std::move(tensors)), inputs_(std::move(inputs)), count_(count), seed_(seed) {}

  std::vector<at::Tensor> batch(std::int64_t step, int microbatch, int microbatches, std::int64_t samples,
                                std::span<const int> inputs) const override {
    const std::int64_t first = (step * microbatches + microbatch) * samples;
    std::vector<at::Tensor> out;
    for (const int input : inputs) {
      const auto index = to_index(input);
      const FileTensor& tensor = tensors_.at(index);
      const at::Tensor all = tensor.bytes(tensor.shape);
      const std::optional<int>& axis = tensor.sample_axis;
      std::vector<std::int64_t> shape{samples};
      shape.insert(shape.end(), inputs_[index].shape.begin(), inputs_[index].shape.end());
      shape.push_back(all.size(-1));
      const at::Tensor bytes = at::empty(shape, all.options());
      for (std::int64_t i = 0; i < samples; ++i)
        bytes.select(0, i).copy_(axis ? all.select(*axis, place(first + i)) : all);
      out.push_back(bytes.view(tensor.dtype).squeeze(-1));
    }
    return out;
  }

  std::optional<std::int64_t> samples() const override { return count_; }

 private:
  std::int64_t place(std::int64_t index) const {
    const auto at = static_cast<std::uint64_t>(index);
    const auto count = static_cast<std::uint64_t>(count_);
    return static_cast<std::int64_t>(seed_ ? shuffled(at, count, *seed_) : at % count);
  }

  std::vector<FileTensor> tensors_;
  std::vector<model::ModelInput> inputs_;
  std::int64_t count_;  ///< samples
  std::optional<std::uint64_t> seed_;
};

/// Samples from the files of `path` (open_tensors), one tensor for each input under its name. Shuffled every epoch if
/// there is a `seed`, else in file order. Mapped files must not be truncated meanwhile. Messages name
/// `kind`. Throws FormatError naming file and input for a missing tensor (listing those present), for another type or
/// shape, for files with different numbers of samples, and for the first integer outside the input's range.
std::unique_ptr<DataSource> tensors_source(const std::string& kind, const std::string& path, const model::Model& model,
                                           std::optional<std::uint64_t> seed) {
  std::vector<FileTensor> tensors = open_tensors(kind, path, model.inputs);
  std::optional<std::size_t> counted;  // the first input with samples
  std::int64_t count = 0;
  for (std::size_t i = 0; i < tensors.size(); ++i) {
    const model::ModelInput& input = model.inputs[i];
    check_shape(tensors[i], input);
    if (!tensors[i].sample_axis) continue;
    const std::int64_t samples = tensors[i].shape[to_index(*tensors[i].sample_axis)];
    if (samples == 0)
      throw FormatError(ErrorKind::DataMismatch, fmt::format("{}: input \"{}\": found 0 samples, must be at least 1",
                                                             tensors[i].path, input.name));
    if (counted && samples != count)
      throw FormatError(ErrorKind::DataMismatch,
                        fmt::format("{}: input \"{}\": found {} samples, expected {} as in input \"{}\"",
                                    tensors[i].path, input.name, samples, count, model.inputs[*counted].name));
    if (!counted) counted = i;
    count = samples;
  }
  for (std::size_t i = 0; i < tensors.size(); ++i) {
    const model::ModelInput& input = model.inputs[i];
    if (tensors[i].dtype == at::kBool) {
      check_range(tensors[i], input, 0, 2, "0 or 1");
    } else if (input.classes > 0 && at::isIntegralType(tensors[i].dtype, /*includeBool=*/false)) {
      std::string wanted = fmt::format("{}..{} (upper end excluded)", input.least, input.classes);
      if (input.range_setting) wanted += fmt::format(", or another range with --input-range {}=LOW..HIGH", input.name);
      check_range(tensors[i], input, input.least, input.classes, wanted);
    }
  }
  return std::make_unique<Tensors>(std::move(tensors), model.inputs, std::max<std::int64_t>(count, 1), seed);
}

}  // namespace

DataSourceKind tensors_data() {
  return {
      .name = "tensors",
      .argument = "PATH",
      .needed = "files",
      .help =
          "tensors named like the inputs, shuffled every epoch: a .safetensors file, a .parquet or .arrow file or a "
          "folder of these, a folder with NAME.npy, or NAME=FILE.npy,NAME=FILE.npy",
      .open = [](const std::string& path, const model::Model& model, std::uint64_t,
                 std::optional<std::uint64_t> seed) { return tensors_source("tensors", path, model, seed); },
      .files = [](const std::string& path) { return tensor_files("tensors", path); }};
}

DataSourceKind tensors_in_order_data() {
  return {.name = "tensors-in-order",
          .argument = "PATH",
          .needed = "files",
          .help = "the same, in file order",
          .open =
              [](const std::string& path, const model::Model& model, std::uint64_t, std::optional<std::uint64_t>) {
                return tensors_source("tensors-in-order", path, model, std::nullopt);
              },
          .files = [](const std::string& path) { return tensor_files("tensors-in-order", path); }};
}

}  // namespace stagecraft::data
