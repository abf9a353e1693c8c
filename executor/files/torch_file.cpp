#include "executor/files/torch_file.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/from_blob.h>
#include <c10/core/ScalarType.h>
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <fstream>

#include "costmodel/errors.h"
#include "costmodel/text/number.h"

namespace stagecraft::files {
namespace {

/// More than any model's state dict needs; storages are separate records.
constexpr std::uint64_t kMostPickleBytes = std::uint64_t{1} << 28;

/// Versions of the archives that PyTorch writes and reads.
constexpr int kLeastVersion = 1;
constexpr int kMostVersion = 10;
constexpr std::uint64_t kMostVersionBytes = 64;

/// The result of `call`; adds to the archive reader's errors what the file should be.
template <class F>
auto reading(const std::string& path, F&& call) {
  try {
    return call();
  } catch (const FormatError& e) {
    std::string reason = e.what();
    if (reason.starts_with(path + ": ")) reason.erase(0, path.size() + 2);
    throw FormatError(ErrorKind::DamagedFile, path + ": is not a complete torch.save archive: " + reason);
  }
}

std::string record_of(const PickledTensor& tensor) { return "data/" + tensor.storage; }

std::uint64_t storage_bytes(const PickledTensor& tensor) {
  return static_cast<std::uint64_t>(tensor.storage_values) * c10::elementSize(tensor.dtype);
}

}  // namespace

bool is_zip_file(const std::string& path) {
  constexpr std::array<char, 4> kMagic{'P', 'K', 3, 4};
  std::ifstream in(path, std::ios::binary);
  if (!in) throw FormatError(ErrorKind::CannotRead, path + ": cannot read: " + std::strerror(errno));
  std::array<char, 4> found{};
  in.read(found.data(), found.size());
  return in && found == kMagic;
}

TorchFile::TorchFile(const std::string& path)
    : path_(path),
      archive_(
          reading(path, [&] { return ZipArchive(path, ZipArchive::Deflated::Read, ZipArchive::Folder::Printable); })) {
  const std::string& first = archive_.records().empty() ? path : archive_.records().front().name;
  if (archive_.records().empty() || first.find('/') == std::string::npos)
    throw FormatError(ErrorKind::DamagedFile,
                      path + ": is not a complete torch.save archive: its records are not in a folder");
  folder_ = first.substr(0, first.find('/') + 1);

  const ZipRecord* version = find(".data/version");
  if (version == nullptr) version = find("version");
  if (version == nullptr)
    throw FormatError(ErrorKind::DamagedFile, path + ": is not a complete torch.save archive: no record \"version\"");
  const std::string text = version->bytes > kMostVersionBytes ? std::string() : bytes_of(*version);
  std::string_view rest = text;
  const int number = take_number<int>(rest).value_or(0);
  if (number < kLeastVersion || number > kMostVersion)
    throw FormatError(
        ErrorKind::DamagedFile,
        fmt::format("{}: is not a complete torch.save archive: found format version {}, expected {} to {}", path,
                    number, kLeastVersion, kMostVersion));

  if (const ZipRecord* const byteorder = find("byteorder")) {
    if (byteorder->bytes != 6) throw FormatError(ErrorKind::DamagedFile, path + ": unknown byte order");
    const std::string order = bytes_of(*byteorder);
    if (order != "little")
      throw FormatError(ErrorKind::DamagedFile, path + ": found byte order \"" + order + "\", expected \"little\"");
  }
  const ZipRecord* const pickle = find("data.pkl");
  if (pickle == nullptr)
    throw FormatError(ErrorKind::DamagedFile, path + ": the archive has no data.pkl, which torch.save writes");
  const auto file_bytes = static_cast<std::uint64_t>(std::filesystem::file_size(path));
  if (pickle->bytes > std::min(kMostPickleBytes, file_bytes))
    throw FormatError(ErrorKind::DamagedFile,
                      fmt::format("{}: found a data.pkl of {} bytes in a file of {}", path, pickle->bytes, file_bytes));
  tensors_ = parse_state_dict(bytes_of(*pickle), path);
  for (const auto& [name, tensor] : tensors_) {
    const std::string record = record_of(tensor);
    const ZipRecord* const storage = find(record);
    const std::uint64_t found = storage != nullptr ? storage->bytes : 0;
    // The product may not overflow: no more values than bytes in the file.
    if (static_cast<std::uint64_t>(tensor.storage_values) > file_bytes || storage == nullptr ||
        found != storage_bytes(tensor) || found > file_bytes) {
      throw FormatError(ErrorKind::DamagedFile,
                        fmt::format("{}: tensor \"{}\": found {} bytes as {}, expected {} values of {}", path, name,
                                    found, record, tensor.storage_values, c10::toString(tensor.dtype)));
    }
  }
}

const ZipRecord* TorchFile::find(const std::string& name) const { return archive_.find(folder_ + name); }

std::string TorchFile::bytes_of(const ZipRecord& record) const {
  return reading(path_, [&] { return archive_.read(record, record.bytes); });
}

std::vector<std::string> TorchFile::names() const {
  std::vector<std::string> out;
  for (const auto& [name, tensor] : tensors_) out.push_back(name);
  return out;
}

std::optional<TensorKind> TorchFile::kind(const std::string& name) const {
  const auto it = tensors_.find(name);
  if (it == tensors_.end()) return std::nullopt;
  return TensorKind{it->second.dtype, it->second.shape};
}

at::Tensor TorchFile::read_part(const std::string& name, const TensorSlice& part) const {
  const PickledTensor& tensor = tensors_.at(name);
  at::Tensor out = at::empty(part.shape, at::TensorOptions().dtype(tensor.dtype));
  if (out.numel() == 0) return out;
  std::string bytes = bytes_of(*find(record_of(tensor)));
  const at::Tensor storage = at::from_blob(bytes.data(), {tensor.storage_values}, out.options());
  return out.copy_(narrowed(storage.as_strided(tensor.shape, tensor.strides, tensor.offset), part));
}

}  // namespace stagecraft::files
