#include <ATen/ops/aminmax.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/from_blob.h>
#include <fcntl.h>
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <map>
#include <optional>
#include <utility>

#include "costmodel/errors.h"
#include "costmodel/index.h"
#include "executor/data/sources.h"
#include "executor/device/dtype.h"
#include "executor/files/npy.h"
#include "executor/files/safetensors.h"
#include "executor/files/safetensors_dtypes.h"

namespace stagecraft::data {
namespace {

namespace fs = std::filesystem;

/// Number of values checked at a time.
constexpr std::int64_t kAtOnce = std::int64_t{1} << 20;

/// A mapped file; its pages are read when they are touched.
class MappedFile {
 public:
  explicit MappedFile(const std::string& path) {
    const int file = ::open(path.c_str(), O_RDONLY | O_CLOEXEC);
    struct stat status{};
    if (file >= 0 && ::fstat(file, &status) == 0 && status.st_size > 0) {
      bytes_ = to_index(status.st_size);
      begin_ = ::mmap(nullptr, bytes_, PROT_READ, MAP_PRIVATE, file, 0);
    }
    const int reason = errno;
    if (file >= 0) ::close(file);
    if (begin_ == MAP_FAILED && bytes_ == 0 && file >= 0)
      throw FormatError(ErrorKind::DamagedData, path + ": is empty");
    if (begin_ == MAP_FAILED)
      throw FormatError(ErrorKind::CannotRead, path + ": cannot read: " + std::strerror(reason));
  }
  ~MappedFile() { ::munmap(begin_, bytes_); }
  MappedFile(const MappedFile&) = delete;
  MappedFile& operator=(const MappedFile&) = delete;

  [[nodiscard]] char* at(std::int64_t offset) const { return static_cast<char*>(begin_) + offset; }
  [[nodiscard]] std::int64_t bytes() const { return static_cast<std::int64_t>(bytes_); }

 private:
  void* begin_ = MAP_FAILED;
  std::size_t bytes_ = 0;
};

/// A tensor within a mapped file.
struct FileTensor {
  std::string path;
  std::shared_ptr<MappedFile> file;
  at::ScalarType dtype = at::kFloat;
  std::vector<std::int64_t> shape;
  std::int64_t begin = 0;  ///< byte of the file

  /// The values as bytes, with one more axis: they may be unaligned in the file.
  [[nodiscard]] at::Tensor bytes(std::vector<std::int64_t> as) const {
    as.push_back(static_cast<std::int64_t>(c10::elementSize(dtype)));
    return at::from_blob(file->at(begin), as, at::TensorOptions().dtype(at::kByte));
  }
};

FileTensor open_npy(const std::string& path) {
  FileTensor out{.path = path, .file = std::make_shared<MappedFile>(path), .shape = {}};
  const std::int64_t head = std::min(out.file->bytes(), files::kMostNpyHeader);
  const files::NpyHeader header = files::parse_npy_header({out.file->at(0), to_index(head)}, out.file->bytes(), path);
  out.dtype = header.dtype;
  out.shape = header.shape;
  out.begin = header.begin;
  return out;
}

/// The names of a folder's .npy files, without the suffix.
std::vector<std::string> names_in(const std::string& folder) {
  std::vector<std::string> out;
  for (const auto& entry : fs::directory_iterator(folder)) {
    if (entry.path().extension() == ".npy") out.push_back(entry.path().stem().string());
  }
  std::ranges::sort(out);
  return out;
}

std::map<std::string, std::string> parse_list(const std::string& kind, const std::string& list) {
  std::map<std::string, std::string> out;
  for (std::size_t begin = 0; begin <= list.size();) {
    const std::size_t end = std::min(list.find(',', begin), list.size());
    const std::string word = list.substr(begin, end - begin);
    const std::size_t equals = word.find('=');
    if (equals == 0 || equals == std::string::npos || equals + 1 == word.size())
      throw std::invalid_argument(fmt::format("data source {}: found \"{}\", expected NAME=FILE.npy", kind, word));
    if (!out.emplace(word.substr(0, equals), word.substr(equals + 1)).second)
      throw std::invalid_argument(fmt::format("data source {}: \"{}\" appears twice", kind, word.substr(0, equals)));
    begin = end + 1;
  }
  return out;
}

/// Whether `path` is a list NAME=FILE.npy,...; a file of such a name is that file.
bool is_list(const std::string& path) { return path.find('=') != std::string::npos && !fs::exists(path); }

/// The files of `path`, as tensors_source takes it.
std::vector<std::string> tensor_files(const std::string& kind, const std::string& path) {
  std::vector<std::string> out;
  if (fs::is_directory(path)) {
    for (const std::string& name : names_in(path)) out.push_back((fs::path(path) / (name + ".npy")).string());
  } else if (is_list(path)) {
    for (const auto& [name, file] : parse_list(kind, path)) out.push_back(file);
  } else {
    out.push_back(path);
  }
  return out;
}

/// The tensor of each input, in their order.
std::vector<FileTensor> open_tensors(const std::string& kind, const std::string& path,
                                     const std::vector<model::ModelInput>& inputs) {
  std::vector<FileTensor> out;
  if (fs::is_directory(path)) {
    for (const model::ModelInput& input : inputs) {
      const std::string file = (fs::path(path) / (input.name + ".npy")).string();
      if (!fs::exists(file))
        throw FormatError(ErrorKind::DataMismatch,
                          fmt::format("{}: found no {}.npy for input \"{}\"; there are {}", path, input.name,
                                      input.name, fmt::join(names_in(path), ", ")));
      out.push_back(open_npy(file));
    }
    return out;
  }
  if (is_list(path)) {
    const std::map<std::string, std::string> files = parse_list(kind, path);
    std::vector<std::string> names;
    for (const auto& [name, file] : files) names.push_back(name);
    for (const model::ModelInput& input : inputs) {
      const auto it = files.find(input.name);
      if (it == files.end())
        throw InputError(ErrorKind::DataMismatch, fmt::format("data source {}: no file for input \"{}\"; listed are {}",
                                                              kind, input.name, fmt::join(names, ", ")));
      out.push_back(open_npy(it->second));
    }
    return out;
  }
  const files::SafetensorsFile file(path);
  const auto mapped = std::make_shared<MappedFile>(path);
  std::uint64_t header = 0;
  std::memcpy(&header, mapped->at(0), sizeof header);
  for (const model::ModelInput& input : inputs) {
    const auto it = file.header().tensors.find(input.name);
    if (it == file.header().tensors.end())
      throw FormatError(ErrorKind::DataMismatch, fmt::format("{}: found no tensor for input \"{}\"; there are {}", path,
                                                             input.name, fmt::join(file.names(), ", ")));
    const format::SafetensorsEntry& entry = it->second;
    out.push_back({path, mapped, files::safetensors_type(entry.dtype), entry.shape,
                   static_cast<std::int64_t>(sizeof header + header) + entry.begin.value});
  }
  return out;
}

std::string spec_text(const std::string& dtype, const std::vector<std::string>& shape) {
  return fmt::format("{}[{}]", dtype, fmt::join(shape, ", "));
}

/// Throws unless type and shape are the input's, whatever the number of samples.
void check_shape(const FileTensor& tensor, const model::ModelInput& input) {
  std::vector<std::int64_t> without = tensor.shape;
  const bool has_axis = !input.batch_axis || to_index(*input.batch_axis) < tensor.shape.size();
  if (input.batch_axis && has_axis) without.erase(without.begin() + *input.batch_axis);
  if (has_axis && without == input.shape && device::dtype_name(tensor.dtype) == input.dtype) return;
  std::vector<std::string> found;
  std::vector<std::string> wanted;
  for (const std::int64_t axis : tensor.shape) found.push_back(std::to_string(axis));
  for (const std::int64_t axis : input.shape) wanted.push_back(std::to_string(axis));
  if (input.batch_axis) wanted.insert(wanted.begin() + *input.batch_axis, "samples");
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
  const at::Tensor all = tensor.bytes({count});
  for (std::int64_t first = 0; first < count; first += kAtOnce) {
    const at::Tensor values = all.narrow(0, first, std::min(kAtOnce, count - first)).clone().view(type).to(at::kLong);
    const auto [low, high] = at::aminmax(values);
    if (low.item<std::int64_t>() >= least && high.item<std::int64_t>() < end) continue;
    const std::int64_t* const begin = values.const_data_ptr<std::int64_t>();
    const std::int64_t* const bad =
        std::find_if(begin, begin + values.numel(), [&](std::int64_t value) { return value < least || value >= end; });
    std::vector<std::int64_t> place;
    std::int64_t rest = first + (bad - begin);
    for (auto axis = tensor.shape.rbegin(); axis != tensor.shape.rend(); ++axis) {
      place.insert(place.begin(), rest % *axis);
      rest /= *axis;
    }
    throw FormatError(ErrorKind::DataMismatch,
                      fmt::format("{}: input \"{}\": found {} at [{}], expected {}", tensor.path, input.name, *bad,
                                  fmt::join(place, ", "), wanted));
  }
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
      const std::optional<int>& axis = inputs_[index].batch_axis;
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

/// Samples from files of tensors, one for each input under its name: `path` is a safetensors file, a folder with
/// NAME.npy for each, or a list NAME=FILE.npy,... of them. Shuffled every epoch if there is a `seed`, else in file
/// order. The files are mapped and must not be truncated meanwhile. Messages name `kind`. Throws FormatError naming
/// file and input for a missing tensor (listing those present), for another type or shape, for files with different
/// numbers of samples, and for the first integer outside the input's range.
std::unique_ptr<DataSource> tensors_source(const std::string& kind, const std::string& path, const model::Model& model,
                                           std::optional<std::uint64_t> seed) {
  std::vector<FileTensor> tensors = open_tensors(kind, path, model.inputs);
  std::optional<std::size_t> counted;  // the first input with samples
  std::int64_t count = 0;
  for (std::size_t i = 0; i < tensors.size(); ++i) {
    const model::ModelInput& input = model.inputs[i];
    check_shape(tensors[i], input);
    if (!input.batch_axis) continue;
    const std::int64_t own = tensors[i].shape[to_index(*input.batch_axis)];
    if (own == 0)
      throw FormatError(ErrorKind::DataMismatch, fmt::format("{}: input \"{}\": found 0 samples, must be at least 1",
                                                             tensors[i].path, input.name));
    if (counted && own != count)
      throw FormatError(ErrorKind::DataMismatch,
                        fmt::format("{}: input \"{}\": found {} samples, expected {} as in input \"{}\"",
                                    tensors[i].path, input.name, own, count, model.inputs[*counted].name));
    if (!counted) counted = i;
    count = own;
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
  return {.name = "tensors",
          .argument = "PATH",
          .needed = "files",
          .help =
              "tensors named like the inputs, shuffled every epoch: a .safetensors file, a folder with NAME.npy, or "
              "NAME=FILE.npy,NAME=FILE.npy",
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
