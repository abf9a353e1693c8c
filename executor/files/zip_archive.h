#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

namespace stagecraft {

/// A file inside a ZIP archive.
struct ZipRecord {
  std::string name;
  std::uint64_t bytes = 0;
  std::uint64_t offset = 0;  ///< of its first byte in the archive
  std::uint32_t crc32 = 0;
  bool deflated = false;  ///< compressed; stands as `stored_bytes` in the archive
  std::uint64_t stored_bytes = 0;
};

/// Bytes of a record: a private mapping of the file, which may be written without changing it. Its pages are read when
/// they are touched. A file that is cut short while it is mapped ends the process; replacing it by renaming does not.
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

/// A ZIP archive whose records are stored as they are, as PyTorch writes most of them. Calls from several threads are
/// fine.
class ZipArchive {
 public:
  enum class Deflated { Refused, Read };
  /// Printable: the outermost folder may have any printable name, as torch.save calls it after the file.
  enum class Folder { Plain, Printable };
  /// Reads the directory. Throws FormatError, naming the file and the record, for a file that is absent, no ZIP archive
  /// or cut short, for records that are compressed (with Read: otherwise than deflated), encrypted, twice there,
  /// overlapping, outside the file or named with anything but letters, digits and "._-/@+ ", with an empty, "." or ".."
  /// part or over 4096 characters, for a record whose local header says something else than the directory, and for more
  /// than a million of them.
  explicit ZipArchive(std::string path, Deflated deflated = Deflated::Refused, Folder folder = Folder::Plain);
  ~ZipArchive();
  ZipArchive(ZipArchive&&) noexcept;

  [[nodiscard]] const std::string& path() const { return path_; }
  /// In the order of the directory.
  [[nodiscard]] const std::vector<ZipRecord>& records() const { return records_; }
  /// The record called `name`, or null.
  [[nodiscard]] const ZipRecord* find(const std::string& name) const;

  /// The record's text. Throws FormatError if it is longer than `most` bytes, cannot be read, or has another CRC.
  [[nodiscard]] std::string read(const ZipRecord& record, std::uint64_t most) const;
  /// A mapping of a stored record; `check` reads it through first and throws FormatError if its CRC is another.
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

}  // namespace stagecraft
