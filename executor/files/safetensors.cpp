#include "executor/files/safetensors.h"

#include <ATen/ops/empty.h>
#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>
#include <zlib.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <optional>
#include <stdexcept>
#include <utility>

#include "costmodel/errors.h"
#include "costmodel/format/safetensors_header.h"
#include "costmodel/index.h"

namespace stagecraft::files {
namespace {

constexpr std::array<std::pair<const char*, at::ScalarType>, 11> kTypes{{{"F64", at::kDouble},
                                                                         {"F32", at::kFloat},
                                                                         {"F16", at::kHalf},
                                                                         {"BF16", at::kBFloat16},
                                                                         {"I64", at::kLong},
                                                                         {"I32", at::kInt},
                                                                         {"I16", at::kShort},
                                                                         {"I8", at::kChar},
                                                                         {"U8", at::kByte},
                                                                         {"BOOL", at::kBool},
                                                                         {"C64", at::kComplexFloat}}};

}  // namespace

std::optional<std::string> safetensors_word(at::ScalarType dtype) {
  for (const auto& [word, type] : kTypes) {
    if (type == dtype) return word;
  }
  return std::nullopt;
}

at::ScalarType safetensors_type(const std::string& word) {
  for (const auto& [known, type] : kTypes) {
    if (word == known) return type;
  }
  throw InputError(ErrorKind::UnknownName, unknown_name("dtype", word, format::safetensors_dtypes()));
}

namespace {

static_assert(std::endian::native == std::endian::little,
              "the format is little-endian and values are copied unchanged");

constexpr std::size_t kLengthBytes = 8;

[[noreturn]] void fail(const std::string& path, const std::string& what, int reason = errno) {
  throw FormatError(what == "read" ? ErrorKind::CannotRead : ErrorKind::CannotWrite,
                    path + ": cannot " + what + ": " + std::strerror(reason));
}

/// A file descriptor that closes itself.
class Descriptor {
 public:
  explicit Descriptor(int number) : number_(number) {}
  ~Descriptor() {
    if (number_ >= 0) ::close(number_);
  }
  Descriptor(const Descriptor&) = delete;
  Descriptor& operator=(const Descriptor&) = delete;
  [[nodiscard]] int get() const { return number_; }
  int release() { return std::exchange(number_, -1); }

 private:
  int number_;
};

/// Reads exactly `count` bytes at `offset`; false at the end of the file.
bool read_exactly(int descriptor, const std::string& path, void* to, std::size_t count, std::int64_t offset) {
  char* out = static_cast<char*>(to);
  while (count > 0) {
    const ssize_t n = ::pread(descriptor, out, count, offset);
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) fail(path, "read");
    if (n == 0) return false;
    out += n;
    offset += n;
    count -= to_index(n);
  }
  return true;
}

void write_all(int descriptor, const std::string& path, const void* data, std::size_t count) {
  const char* at = static_cast<const char*>(data);
  while (count > 0) {
    const ssize_t n = ::write(descriptor, at, count);
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) fail(path, "write");
    at += n;
    count -= to_index(n);
  }
}

int open_for_reading(const std::string& path) {
  const int descriptor = ::open(path.c_str(), O_RDONLY | O_CLOEXEC);
  if (descriptor < 0) fail(path, "read");
  return descriptor;
}

std::int64_t file_bytes(int descriptor, const std::string& path) {
  struct stat status{};
  if (::fstat(descriptor, &status) != 0) fail(path, "read");
  if (!S_ISREG(status.st_mode)) throw FormatError(ErrorKind::CannotRead, path + ": is not a regular file");
  return status.st_size;
}

}  // namespace

FileDigest file_digest(const std::string& path) {
  const Descriptor file(open_for_reading(path));
  const std::int64_t bytes = file_bytes(file.get(), path);
  constexpr std::int64_t kBuffer = 1 << 20;
  std::vector<char> buffer(to_index(std::min(kBuffer, std::max<std::int64_t>(bytes, 1))));
  uLong crc = ::crc32(0, nullptr, 0);
  for (std::int64_t at = 0; at < bytes;) {
    const auto count = to_index(std::min<std::int64_t>(bytes - at, kBuffer));
    if (!read_exactly(file.get(), path, buffer.data(), count, at))
      throw FormatError(ErrorKind::DamagedFile, path + ": was truncated");
    crc = ::crc32_z(crc, reinterpret_cast<const Bytef*>(buffer.data()), count);
    at += static_cast<std::int64_t>(count);
  }
  return {Bytes(bytes), static_cast<std::uint32_t>(crc)};
}

std::uint32_t crc32_of(const std::string& text) {
  return static_cast<std::uint32_t>(
      ::crc32_z(::crc32(0, nullptr, 0), reinterpret_cast<const Bytef*>(text.data()), text.size()));
}

SafetensorsFile::SafetensorsFile(const std::string& path) : path_(path) {
  Descriptor file(open_for_reading(path));
  const std::int64_t bytes = file_bytes(file.get(), path);
  std::uint64_t length = 0;
  if (!read_exactly(file.get(), path, &length, kLengthBytes, 0))
    throw FormatError(
        ErrorKind::DamagedFile,
        fmt::format("{}: found {} bytes, expected a safetensors file of at least {}", path, bytes, kLengthBytes));
  const auto rest = static_cast<std::uint64_t>(bytes) - kLengthBytes;
  const std::uint64_t most =
      std::min<std::uint64_t>(rest, static_cast<std::uint64_t>(format::kMostSafetensorsHeader.value));
  if (length > most)
    throw FormatError(ErrorKind::DamagedFile,
                      fmt::format("{}: found a header of {} bytes, expected at most {}", path, length, most));
  std::string text(length, '\0');
  if (!read_exactly(file.get(), path, text.data(), text.size(), kLengthBytes))
    throw FormatError(ErrorKind::DamagedFile, path + ": was truncated");
  header_ = format::parse_safetensors_header(text, Bytes(static_cast<std::int64_t>(rest - length)), path);
  data_begin_ = static_cast<std::int64_t>(kLengthBytes + length);
  descriptor_ = file.release();
}

SafetensorsFile::~SafetensorsFile() {
  if (descriptor_ >= 0) ::close(descriptor_);
}

std::vector<std::string> SafetensorsFile::names() const {
  std::vector<std::string> out;
  for (const auto& [name, entry] : header_.tensors) out.push_back(name);
  return out;
}

std::optional<TensorKind> SafetensorsFile::kind(const std::string& name) const {
  const auto it = header_.tensors.find(name);
  if (it == header_.tensors.end()) return std::nullopt;
  return TensorKind{safetensors_type(it->second.dtype), it->second.shape};
}

at::Tensor SafetensorsFile::read_part(const std::string& name, const TensorSlice& part) const {
  const format::SafetensorsEntry& entry = header_.tensors.at(name);
  at::Tensor out = at::empty(part.shape, at::TensorOptions().dtype(safetensors_type(entry.dtype)));
  if (out.numel() == 0) return out;
  // The part lies in the file as runs of equal length: trailing dimensions that are whole, and one that need not be.
  const auto value_bytes = static_cast<std::int64_t>(out.element_size());
  std::int64_t run = value_bytes;
  std::size_t outer = part.shape.size();
  while (outer > 0 && part.shape[outer - 1] == entry.shape[outer - 1]) run *= part.shape[--outer];
  if (outer > 0) run *= part.shape[--outer];
  char* to = static_cast<char*>(out.data_ptr());
  for (std::int64_t i = 0, runs = static_cast<std::int64_t>(out.nbytes()) / run; i < runs; ++i) {
    std::int64_t offset = 0;
    std::int64_t stride = value_bytes;
    std::int64_t rest = i;
    for (std::size_t d = entry.shape.size(); d-- > 0; stride *= entry.shape[d]) {
      std::int64_t index = part.begin[d];
      if (d < outer) index += std::exchange(rest, rest / part.shape[d]) % part.shape[d];
      offset += index * stride;
    }
    if (!read_exactly(descriptor_, path_, to + i * run, to_index(run), data_begin_ + entry.begin.value + offset))
      throw FormatError(ErrorKind::DamagedFile, path_ + ": tensor \"" + name + "\": the file was truncated");
  }
  return out;
}

bool safetensors_hold(at::ScalarType dtype) { return safetensors_word(dtype).has_value(); }

FileDigest write_safetensors(const std::string& path, const NamedTensors& tensors,
                             const std::map<std::string, std::string>& metadata) {
  std::vector<NamedTensors::const_iterator> order;
  format::SafetensorsHeader header{metadata, {}};
  for (auto it = tensors.begin(); it != tensors.end(); ++it) order.push_back(it);
  std::ranges::stable_sort(order, [](const auto& a, const auto& b) {
    return a->second.element_size() > b->second.element_size();  // keeps all values aligned
  });
  std::int64_t end = 0;
  for (const auto& entry : order) {
    const auto& [name, tensor] = *entry;
    const std::optional<std::string> word = safetensors_word(tensor.scalar_type());
    if (!word)
      throw std::invalid_argument("tensor \"" + name + "\" has a type that safetensors files do not support: " +
                                  c10::toString(tensor.scalar_type()));
    const std::int64_t begin =
        std::exchange(end, end + tensor.numel() * static_cast<std::int64_t>(tensor.element_size()));
    header.tensors[name] = {*word, tensor.sizes().vec(), Bytes(begin), Bytes(end)};
  }
  const std::string text = format::safetensors_header_text(header);
  const std::uint64_t length = text.size();

  const std::string temporary = fmt::format("{}.partial.{}", path, ::getpid());
  Descriptor file(::open(temporary.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644));
  if (file.get() < 0) fail(path, "write");
  FileDigest digest{Bytes(static_cast<std::int64_t>(kLengthBytes + text.size()) + end), 0};
  try {
    uLong crc = ::crc32(0, nullptr, 0);
    const auto put = [&](const void* data, std::size_t count) {
      if (count == 0) return;
      crc = ::crc32_z(crc, static_cast<const Bytef*>(data), count);
      write_all(file.get(), path, data, count);
    };
    put(&length, kLengthBytes);
    put(text.data(), text.size());
    for (const auto& entry : order) {
      const at::Tensor values = entry->second.detach().cpu().contiguous();
      put(values.const_data_ptr(), values.nbytes());
    }
    digest.crc32 = static_cast<std::uint32_t>(crc);
    if (::fsync(file.get()) != 0) fail(path, "write");
    if (::close(file.release()) != 0) fail(path, "write");
    if (std::rename(temporary.c_str(), path.c_str()) != 0) fail(path, "write");
  } catch (...) {
    ::unlink(temporary.c_str());
    throw;
  }
  const std::string folder = std::filesystem::path(path).parent_path().string();
  sync_directory(folder.empty() ? "." : folder);
  return digest;
}

void sync_directory(const std::string& path) {
  const Descriptor folder(::open(path.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  if (folder.get() < 0) fail(path, "sync");
  if (::fsync(folder.get()) != 0 && errno != EINVAL) fail(path, "sync");  // EINVAL: not supported by the file system
}

}  // namespace stagecraft::files
