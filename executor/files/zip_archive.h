#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <set>
#include <span>
#include <string>
#include <vector>

namespace stagecraft::files {

/// A file inside a ZIP archive.
struct ZipRecord {
  std::string name;
  std::uint64_t bytes = 0;
  std::uint64_t offset = 0;  ///< of its first byte in the archive
  std::uint32_t crc32 = 0;
  bool deflated = false;  ///< compressed to `stored_bytes` in the archive
  std::uint64_t stored_bytes = 0;
};

/// Bytes of a record: a private mapping of the file, which may be written without changing it. Its pages are read when
/// they are touched. Truncating the file while it is mapped ends the process; replacing it by renaming does not.
class MappedRecord {
 public:
  [[nodiscard]] std::span<std::byte> bytes() const { return bytes_; }
  ~MappedRecord();
  MappedRecord(const MappedRecord&) = delete;
  MappedRecord& operator=(const MappedRecord&) = delete;

 private:
  friend class ZipArchive;
  MappedRecord(void* begin, std::size_t length, std::span<std::byte> bytes)
      : begin_(begin), length_(length), bytes_(bytes) {}
  void* begin_;
  std::size_t length_;
  std::span<std::byte> bytes_;
};

/// A ZIP archive of stored records, as PyTorch usually writes it. Thread-safe.
class ZipArchive {
 public:
  enum class Deflated { Refused, Read };
  /// Printable: the outermost folder may have any printable name, because torch.save names it after the file.
  enum class Folder { Plain, Printable };
  /// Reads the directory. Throws FormatError, naming the file and the record, for a file that is missing, truncated or
  /// not a ZIP archive; for records that are compressed (with Read: other than deflated), encrypted, duplicate,
  /// overlapping, outside the file, or named with characters other than letters, digits and "._-/@+ ", with an empty,
  /// "." or ".." part or more than 4096 characters; for a record whose local header differs from the central directory;
  /// and for more than a million records.
  explicit ZipArchive(std::string path, Deflated deflated = Deflated::Refused, Folder folder = Folder::Plain);
  ~ZipArchive();
  ZipArchive(ZipArchive&&) noexcept;

  [[nodiscard]] const std::string& path() const { return path_; }
  /// In the order of the directory.
  [[nodiscard]] const std::vector<ZipRecord>& records() const { return records_; }
  /// The record called `name`, or null.
  [[nodiscard]] const ZipRecord* find(const std::string& name) const;

  /// The record's text. Throws FormatError if it is longer than `most` bytes, cannot be read, or has the wrong CRC.
  [[nodiscard]] std::string read(const ZipRecord& record, std::uint64_t most) const;
  /// A mapping of a stored record; `check` first reads it and throws FormatError if its CRC is wrong.
  [[nodiscard]] std::shared_ptr<MappedRecord> map(const ZipRecord& record, bool check) const;

 private:
  void read_directory();
  void check_sum(const ZipRecord& record, const void* data) const;

  std::string path_;
  Deflated deflated_ = Deflated::Refused;
  Folder folder_ = Folder::Plain;
  int file_ = -1;
  std::vector<ZipRecord> records_;
  std::vector<std::size_t> by_name_;  ///< indices into records_, by ascending name
};

/// Whether a record is called `name` in one of the archive's outermost folders.
[[nodiscard]] bool has_record_in_folder(const ZipArchive& archive, const std::string& name);

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
