#include "executor/files/torch_file.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/from_blob.h>
#include <c10/core/ScalarType.h>
#include <c10/util/Exception.h>
#include <caffe2/serialize/inline_container.h>
#include <fmt/format.h>

#include <array>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <fstream>

#include "costmodel/errors.h"

namespace stagecraft {
namespace {

/// More than the state dict of any model takes; storages are records of their own.
constexpr std::size_t kMostPickleBytes = std::size_t{1} << 28;

/// What `call` gives; an error of the archive's reader becomes ours.
template <class F>
auto reading(const std::string& path, F&& call) {
  try {
    return call();
  } catch (const FormatError&) { throw; } catch (const c10::Error& e) {
    throw FormatError(path + ": is no whole archive of torch.save: " + e.what_without_backtrace());
  } catch (const std::exception& e) { throw FormatError(path + ": is no whole archive of torch.save: " + e.what()); }
}

std::string record_of(const PickledTensor& tensor) { return "data/" + tensor.storage; }

std::size_t bytes_of(const PickledTensor& tensor) {
  return static_cast<std::size_t>(tensor.storage_values) * c10::elementSize(tensor.dtype);
}

}  // namespace

bool is_zip_file(const std::string& path) {
  constexpr std::array<char, 4> kMagic{'P', 'K', 3, 4};
  std::ifstream in(path, std::ios::binary);
  if (!in) throw FormatError(path + ": cannot read: " + std::strerror(errno));
  std::array<char, 4> found{};
  in.read(found.data(), found.size());
  return in && found == kMagic;
}

TorchFile::TorchFile(const std::string& path) : path_(path) {
  const auto file_bytes = std::filesystem::file_size(path);
  const std::string pickle = reading(path, [&] {
    archive_ = std::make_unique<caffe2::serialize::PyTorchStreamReader>(path);
    if (archive_->hasRecord("byteorder")) {
      std::array<char, 8> order{};
      if (archive_->getRecordSize("byteorder") != 6) throw FormatError(path + ": found a byte order of no known name");
      (void)archive_->getRecord("byteorder", order.data(), 6);
      if (std::string(order.data(), 6) != "little")
        throw FormatError(path + ": found byte order \"" + std::string(order.data(), 6) + "\", wanted \"little\"");
    }
    if (!archive_->hasRecord("data.pkl"))
      throw FormatError(path + ": found no data.pkl in the archive, which torch.save writes");
    const std::size_t size = archive_->getRecordSize("data.pkl");
    if (size > std::min<std::size_t>(kMostPickleBytes, file_bytes))
      throw FormatError(fmt::format("{}: found a data.pkl of {} bytes in a file of {}", path, size, file_bytes));
    std::string out(size, '\0');
    if (size > 0) (void)archive_->getRecord("data.pkl", out.data(), size);
    return out;
  });
  tensors_ = parse_state_dict(pickle, path);
  reading(path, [&] {
    for (const auto& [name, tensor] : tensors_) {
      const std::string record = record_of(tensor);
      const bool there = archive_->hasRecord(record);
      const std::size_t found = there ? archive_->getRecordSize(record) : 0;
      // The product may not overflow: no more values than bytes in the file.
      if (static_cast<std::uint64_t>(tensor.storage_values) > file_bytes || !there || found != bytes_of(tensor) ||
          found > file_bytes) {
        throw FormatError(fmt::format("{}: tensor \"{}\": found {} bytes as {}, wanted {} values of {}", path, name,
                                      found, record, tensor.storage_values, c10::toString(tensor.dtype)));
      }
    }
  });
}

TorchFile::~TorchFile() = default;

std::vector<std::string> TorchFile::names() const {
  std::vector<std::string> out;
  for (const auto& [name, tensor] : tensors_) out.push_back(name);
  return out;
}

at::Tensor TorchFile::read(const std::string& name) const {
  const auto it = tensors_.find(name);
  if (it == tensors_.end()) throw FormatError(path_ + ": " + unknown_name("tensor", name, names()));
  const PickledTensor& tensor = it->second;
  at::Tensor out = at::empty(tensor.shape, at::TensorOptions().dtype(tensor.dtype));
  if (out.numel() == 0) return out;
  reading(path_, [&] {
    const auto [data, bytes] = archive_->getRecord(record_of(tensor));
    if (bytes != bytes_of(tensor)) throw FormatError(path_ + ": tensor \"" + name + "\": the file became shorter");
    const at::Tensor storage = at::from_blob(data.get(), {tensor.storage_values}, out.options());
    out.copy_(storage.as_strided(tensor.shape, tensor.strides, tensor.offset));
  });
  return out;
}

}  // namespace stagecraft
