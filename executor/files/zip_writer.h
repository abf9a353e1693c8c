#pragma once

#include <cstddef>
#include <cstdint>
#include <set>
#include <span>
#include <string>

namespace stagecraft::files {

/// Writes a ZIP archive as PyTorch does: records stored as they are, each beginning at a multiple of 64 bytes. The same
/// records give the same bytes. All members throw FormatError with the path and the system's reason.
class ZipWriter {
 public:
  /// Creates or truncates the file.
  explicit ZipWriter(std::string path);
  /// Deletes the file unless finish() was called.
  ~ZipWriter();
  ZipWriter(const ZipWriter&) = delete;
  ZipWriter& operator=(const ZipWriter&) = delete;

  /// Throws std::invalid_argument for a duplicate name.
  void add(const std::string& name, std::span<const std::byte> bytes);
  void add(const std::string& name, const std::string& text);
  /// Writes the directory; nothing can be added afterwards.
  void finish();

 private:
  void check(int status) const;

  std::string path_;
  void* zip_ = nullptr;
  std::uint64_t offset_ = 0;
  std::set<std::string> names_;
};

}  // namespace stagecraft::files
