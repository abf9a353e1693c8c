#include "executor/data/file_tensors.h"

#include <ATen/ops/aminmax.h>
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
#include <stdexcept>
#include <utility>

#include "costmodel/errors.h"
#include "costmodel/index.h"
#include "executor/device/dtype.h"
#include "executor/files/columns.h"
#include "executor/files/npy.h"
#include "executor/files/safetensors.h"

namespace stagecraft::data {
namespace {

namespace fs = std::filesystem;

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

/// The tensor of `input` in a NumPy file.
FileTensor open_npy_of(const std::string& path, const model::ModelInput& input) {
  FileTensor out = open_npy(path);
  out.sample_axis = input.batch_axis;
  return out;
}

std::vector<FileTensor> open_folder(const std::string& path, const std::vector<model::ModelInput>& inputs) {
  std::vector<FileTensor> out;
  for (const model::ModelInput& input : inputs) {
    const std::string file = (fs::path(path) / (input.name + ".npy")).string();
    if (!fs::exists(file))
      throw FormatError(ErrorKind::DataMismatch, fmt::format("{}: found no {}.npy for input \"{}\"; there are {}", path,
                                                             input.name, input.name, fmt::join(names_in(path), ", ")));
    out.push_back(open_npy_of(file, input));
  }
  return out;
}

std::vector<FileTensor> open_list(const std::string& kind, const std::string& path,
                                  const std::vector<model::ModelInput>& inputs) {
  const std::map<std::string, std::string> files = parse_list(kind, path);
  std::vector<std::string> names;
  for (const auto& [name, file] : files) names.push_back(name);
  std::vector<FileTensor> out;
  for (const model::ModelInput& input : inputs) {
    const auto it = files.find(input.name);
    if (it == files.end())
      throw InputError(ErrorKind::DataMismatch, fmt::format("data source {}: no file for input \"{}\"; listed are {}",
                                                            kind, input.name, fmt::join(names, ", ")));
    out.push_back(open_npy_of(it->second, input));
  }
  return out;
}

std::vector<FileTensor> open_safetensors(const std::string& path, const std::vector<model::ModelInput>& inputs) {
  const files::SafetensorsFile file(path);
  const auto mapped = std::make_shared<MappedFile>(path);
  std::uint64_t header = 0;
  std::memcpy(&header, mapped->at(0), sizeof header);
  std::vector<FileTensor> out;
  for (const model::ModelInput& input : inputs) {
    const auto it = file.header().tensors.find(input.name);
    if (it == file.header().tensors.end())
      throw FormatError(ErrorKind::DataMismatch, fmt::format("{}: found no tensor for input \"{}\"; there are {}", path,
                                                             input.name, fmt::join(file.names(), ", ")));
    const format::SafetensorsEntry& entry = it->second;
    out.push_back({path, files::safetensors_type(entry.dtype), entry.shape, input.batch_axis, mapped,
                   mapped->at(static_cast<std::int64_t>(sizeof header + header) + entry.begin.value)});
  }
  return out;
}

/// Whether an integer type can hold all of these integers.
bool holds(at::ScalarType type, const at::Tensor& values) {
  if (values.numel() == 0) return true;
  const bool is_signed = type != at::kByte;
  const auto bits = static_cast<int>(8 * c10::elementSize(type)) - (is_signed ? 1 : 0);
  const auto most = static_cast<std::int64_t>((std::uint64_t{1} << bits) - 1);
  const auto [low, high] = at::aminmax(values);
  return low.item<std::int64_t>() >= (is_signed ? -most - 1 : 0) && high.item<std::int64_t>() <= most;
}

/// `values` in the type of an input that holds the same kind of number, if it can hold them all.
at::Tensor as_type_of(const at::Tensor& values, const model::ModelInput& input) {
  const at::ScalarType to = device::dtype_of(input.dtype);
  const at::ScalarType from = values.scalar_type();
  if (from == to) return values;
  if (at::isFloatingType(from) && at::isFloatingType(to)) return values.to(to);
  const bool integers =
      at::isIntegralType(from, /*includeBool=*/false) && at::isIntegralType(to, /*includeBool=*/false);
  return integers && holds(to, values) ? values.to(to) : values;
}

std::vector<FileTensor> open_columns(const std::string& path, const std::vector<model::ModelInput>& inputs) {
  std::vector<std::string> names;
  for (const model::ModelInput& input : inputs) {
    names.push_back(input.name);
    if (!input.batch_axis)
      throw InputError(
          ErrorKind::DataMismatch,
          fmt::format("{}: input \"{}\" is the same for all samples, which a column cannot hold; write the "
                      "data as a safetensors file or .npy files",
                      path, input.name));
  }
  std::vector<FileTensor> out;
  std::vector<files::NumberColumn> columns = files::read_columns(path, names);
  for (std::size_t i = 0; i < columns.size(); ++i) {
    const model::ModelInput& input = inputs[i];
    files::NumberColumn& column = columns[i];
    if (!column.uneven.empty())
      throw FormatError(ErrorKind::DataMismatch, column.uneven + "; all rows must have the shape of a sample");
    std::vector<std::int64_t> row = column.shape;
    std::int64_t count = 1;
    for (const std::int64_t axis : input.shape) count *= axis;
    if (row.size() == 1 && row[0] == count) row = input.shape;
    row.insert(row.begin(), column.rows);
    const auto values = std::make_shared<at::Tensor>(as_type_of(column.values, input));
    column.values = at::Tensor();
    out.push_back({path, values->scalar_type(), std::move(row), 0, values, values->mutable_data_ptr()});
  }
  return out;
}

}  // namespace

at::Tensor FileTensor::bytes(std::vector<std::int64_t> as) const {
  as.push_back(static_cast<std::int64_t>(c10::elementSize(dtype)));
  return at::from_blob(values, as, at::TensorOptions().dtype(at::kByte));
}

FileTensor open_npy(const std::string& path) {
  const auto file = std::make_shared<MappedFile>(path);
  const std::int64_t head = std::min(file->bytes(), files::kMostNpyHeader);
  const files::NpyHeader header = files::parse_npy_header({file->at(0), to_index(head)}, file->bytes(), path);
  return {path, header.dtype, header.shape, std::nullopt, file, file->at(header.begin)};
}

std::optional<std::pair<std::int64_t, at::Tensor>> values_outside(const at::Tensor& bytes, at::ScalarType type,
                                                                  std::int64_t least, std::int64_t end) {
  constexpr std::int64_t kAtOnce = std::int64_t{1} << 20;
  for (std::int64_t first = 0; first < bytes.size(0); first += kAtOnce) {
    const std::int64_t count = std::min(kAtOnce, bytes.size(0) - first);
    at::Tensor values = bytes.narrow(0, first, count).clone().view(type).to(at::kLong).squeeze(-1);
    const auto [low, high] = at::aminmax(values);
    if (low.item<std::int64_t>() < least || high.item<std::int64_t>() >= end)
      return std::pair(first, std::move(values));
  }
  return std::nullopt;
}

void refuse_other_formats(const std::string& path) {
  static const std::map<std::string, std::string> remedies{
      {".csv", "pandas.read_csv(FILE).to_parquet(\"data.parquet\")"},
      {".tsv", "pandas.read_csv(FILE, sep=\"\\t\").to_parquet(\"data.parquet\")"},
      {".json", "pandas.read_json(FILE).to_parquet(\"data.parquet\")"},
      {".jsonl", "pandas.read_json(FILE, lines=True).to_parquet(\"data.parquet\")"},
      {".npz", "numpy.save(\"NAME.npy\", array) for each array"},
      {".pt", "safetensors.torch.save_file(tensors, \"data.safetensors\")"},
      {".pth", "safetensors.torch.save_file(tensors, \"data.safetensors\")"}};
  const auto remedy = remedies.find(fs::path(path).extension().string());
  if (remedy == remedies.end() || !fs::exists(path)) return;
  throw FormatError(
      ErrorKind::DamagedData,
      fmt::format("{}: {} files are not read; expected .safetensors, .npy, .parquet, .arrow or .feather; in "
                  "Python: {}",
                  path, remedy->first, remedy->second));
}

std::vector<FileTensor> open_tensors(const std::string& kind, const std::string& path,
                                     const std::vector<model::ModelInput>& inputs) {
  refuse_other_formats(path);
  if (files::has_columns(path)) return open_columns(path, inputs);
  if (fs::is_directory(path)) return open_folder(path, inputs);
  if (is_list(path)) return open_list(kind, path, inputs);
  return open_safetensors(path, inputs);
}

std::vector<std::string> tensor_files(const std::string& kind, const std::string& path) {
  std::vector<std::string> out;
  if (files::has_columns(path)) return files::column_files(path);
  if (fs::is_directory(path)) {
    for (const std::string& name : names_in(path)) out.push_back((fs::path(path) / (name + ".npy")).string());
  } else if (is_list(path)) {
    for (const auto& [name, file] : parse_list(kind, path)) out.push_back(file);
  } else {
    out.push_back(path);
  }
  return out;
}

}  // namespace stagecraft::data
