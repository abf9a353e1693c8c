#include "executor/files/fingerprint.h"

#include <fmt/format.h>
#include <zlib.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <vector>

#include "costmodel/errors.h"
#include "costmodel/index.h"

namespace stagecraft::files {
namespace {

namespace fs = std::filesystem;

constexpr std::int64_t kBlock = std::int64_t{1} << 20;
constexpr std::int64_t kMostFiles = 1024;
constexpr std::int64_t kFirst = 4096;

/// A CRC-32 that grows.
class Checksum {
 public:
  void add(const char* data, std::int64_t bytes) {
    value_ = ::crc32_z(value_, reinterpret_cast<const Bytef*>(data), to_index(bytes));
  }
  [[nodiscard]] std::uint32_t value() const { return static_cast<std::uint32_t>(value_); }

 private:
  uLong value_ = ::crc32(0, nullptr, 0);
};

[[noreturn]] void refuse(const std::string& path, const std::string& why) {
  throw FormatError(ErrorKind::CannotRead, fmt::format("{}: cannot read: {}", path, why));
}

/// Adds the `bytes` bytes from `begin` on, or those up to the end of the file.
void add_block(Checksum& sum, std::ifstream& file, const std::string& path, std::int64_t begin, std::int64_t bytes) {
  std::vector<char> buffer(to_index(bytes));
  file.seekg(begin);
  file.read(buffer.data(), bytes);
  if (file.bad()) refuse(path, std::strerror(errno));
  sum.add(buffer.data(), file.gcount());
  file.clear();
}

std::ifstream opened(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  if (!file) refuse(path, std::strerror(errno));
  return file;
}

std::string of_file(const std::string& path, std::int64_t most) {
  std::ifstream file = opened(path);
  const auto bytes = static_cast<std::int64_t>(fs::file_size(path));
  Checksum sum;
  if (bytes <= most) {
    for (std::int64_t begin = 0; begin < bytes; begin += kBlock)
      add_block(sum, file, path, begin, std::min(kBlock, bytes - begin));
  } else {
    const std::int64_t blocks = std::max<std::int64_t>(2, most / kBlock);
    const std::int64_t last = std::max<std::int64_t>(0, bytes - kBlock);  // where the last one begins
    for (std::int64_t i = 0; i < blocks; ++i)
      add_block(sum, file, path, last / (blocks - 1) * i + last % (blocks - 1) * i / (blocks - 1), kBlock);
  }
  return fmt::format("{} bytes, CRC-32 {:08x}", bytes, sum.value());
}

std::string of_folder(const std::string& path) {
  std::vector<std::string> names;
  for (const fs::directory_entry& entry :
       fs::recursive_directory_iterator(path, fs::directory_options::follow_directory_symlink)) {
    if (entry.is_regular_file()) names.push_back(entry.path().lexically_relative(path).string());
  }
  std::ranges::sort(names);
  const auto count = static_cast<std::int64_t>(names.size());
  const std::int64_t step = std::max<std::int64_t>(1, (count + kMostFiles - 1) / kMostFiles);
  Checksum sum;
  for (std::int64_t i = 0; i < count; ++i) {
    const std::string file = (fs::path(path) / names[to_index(i)]).string();
    const std::string line = fmt::format("{} {}\n", names[to_index(i)], fs::file_size(file));
    sum.add(line.data(), static_cast<std::int64_t>(line.size()));
    if (i % step != 0) continue;
    std::ifstream stream = opened(file);
    add_block(sum, stream, file, 0, kFirst);
  }
  return fmt::format("{} files, CRC-32 {:08x}", count, sum.value());
}

}  // namespace

std::string fingerprint(const std::string& path, std::int64_t most) {
  try {
    return fs::is_directory(path) ? of_folder(path) : of_file(path, most);
  } catch (const fs::filesystem_error& e) { refuse(path, e.code().message()); }
}

}  // namespace stagecraft::files
