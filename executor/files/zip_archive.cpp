#include "executor/files/zip_archive.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <minizip/unzip.h>
#include <minizip/zip.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>
#include <zlib.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <limits>
#include <numeric>
#include <optional>
#include <stdexcept>
#include <utility>
#include <vector>

#include "costmodel/errors.h"
#include "costmodel/index.h"

namespace stagecraft::files {
namespace {

constexpr std::uint64_t kMostRecords = 1'000'000;
constexpr std::size_t kLongestName = 4096;
constexpr std::uint64_t kEndBytes = 22;
constexpr std::uint64_t kLocatorBytes = 20;
constexpr std::uint64_t kEnd64Bytes = 56;
constexpr std::size_t kLocalHeaderBytes = 30;
constexpr std::uint64_t kEntryBytes = 46;  ///< of the directory, without name, extra field and comment

/// Bytes of the file from `offset` into `out`; false if it ends before.
bool read_at(int file, std::uint64_t offset, void* out, std::size_t count) {
  while (count > 0) {
    const ssize_t got = ::pread(file, out, std::min(count, std::size_t{1} << 30), static_cast<off_t>(offset));
    if (got < 0 && errno == EINTR) continue;
    if (got <= 0) return false;
    out = static_cast<char*>(out) + got;
    offset += static_cast<std::uint64_t>(got);
    count -= to_index(got);
  }
  return true;
}

/// A little-endian number of `count` bytes.
std::uint64_t number_at(std::span<const unsigned char> bytes, std::size_t at, std::size_t count) {
  std::uint64_t out = 0;
  for (std::size_t i = count; i-- > 0;) out = out << 8 | bytes[at + i];
  return out;
}

/// Position of the central directory, from the structures at the end of the file.
struct Directory {
  std::uint64_t offset = 0;
  std::uint64_t bytes = 0;
  std::uint64_t entries = 0;
};

/// Absent unless the file ends exactly with them: bytes before or after an archive, or in its comment, could be another
/// archive.
std::optional<Directory> find_directory(int file, std::uint64_t file_bytes) {
  std::array<unsigned char, kEndBytes> end{};
  if (file_bytes < kEndBytes || !read_at(file, file_bytes - kEndBytes, end.data(), end.size())) return std::nullopt;
  if (number_at(end, 0, 4) != 0x06054b50 || number_at(end, 4, 4) != 0 || number_at(end, 20, 2) != 0)
    return std::nullopt;
  Directory out{number_at(end, 16, 4), number_at(end, 12, 4), number_at(end, 10, 2)};
  const std::uint64_t entries_on_disk = number_at(end, 8, 2);
  if (entries_on_disk != out.entries) return std::nullopt;
  std::uint64_t after = file_bytes - kEndBytes;

  std::array<unsigned char, kLocatorBytes + kEnd64Bytes> wide{};
  if (after >= wide.size() && read_at(file, after - wide.size(), wide.data(), wide.size()) &&
      number_at(wide, kEnd64Bytes, 4) == 0x07064b50) {
    after -= wide.size();
    const Directory wider{number_at(wide, 48, 8), number_at(wide, 40, 8), number_at(wide, 32, 8)};
    const bool whole = number_at(wide, 0, 4) == 0x06064b50 && number_at(wide, 4, 8) == kEnd64Bytes - 12 &&
                       number_at(wide, kEnd64Bytes + 8, 8) == after && number_at(wide, 16, 8) == 0 &&
                       number_at(wide, 24, 8) == wider.entries;
    const bool same = (out.entries == 0xffff || out.entries == wider.entries) &&
                      (out.bytes == 0xffffffff || out.bytes == wider.bytes) &&
                      (out.offset == 0xffffffff || out.offset == wider.offset);
    if (!whole || !same) return std::nullopt;
    out = wider;
  }
  if (out.bytes > after || out.offset != after - out.bytes) return std::nullopt;
  return out;
}

/// minizip's file, on a separate descriptor.
class Unzip {
 public:
  explicit Unzip(int file) {
    zlib_filefunc64_def functions;
    fill_fopen64_filefunc(&functions);
    functions.opaque = &file;
    functions.zopen64_file = [](voidpf opaque, const void*, int) -> voidpf {
      const int copy = ::fcntl(*static_cast<int*>(opaque), F_DUPFD_CLOEXEC, 0);
      if (copy < 0) return nullptr;
      std::FILE* out = ::fdopen(copy, "rb");
      if (out == nullptr) ::close(copy);
      return out;
    };
    handle_ = ::unzOpen2_64("", &functions);
  }
  ~Unzip() {
    if (handle_ != nullptr) ::unzClose(handle_);
  }
  Unzip(const Unzip&) = delete;
  Unzip& operator=(const Unzip&) = delete;
  [[nodiscard]] unzFile get() const { return handle_; }

 private:
  unzFile handle_ = nullptr;
};

/// What is wrong with a record's name; empty if it is valid.
std::string fault_of_name(const std::string& name, ZipArchive::Folder folder) {
  if (name.size() > kLongestName) return fmt::format("a name of more than {} characters", kLongestName);
  const std::size_t folder_end = folder == ZipArchive::Folder::Plain ? 0 : std::min(name.find('/'), name.size());
  for (std::size_t i = 0; i < name.size(); ++i) {
    const char c = name[i];
    if (i < folder_end && c >= ' ' && c <= '~') continue;
    const bool plain = (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9');
    if (!plain && (c == '\0' || std::strchr("._-/@+ ", c) == nullptr))
      return "a name with characters other than letters, digits and \"._-/@+ \"";
  }
  for (std::size_t begin = 0; begin <= name.size();) {
    const std::size_t end = std::min(name.find('/', begin), name.size());
    const std::string part = name.substr(begin, end - begin);
    if (part.empty() || part == "." || part == "..") return "a name with an empty part, \".\" or \"..\"";
    begin = end + 1;
  }
  return {};
}

/// `name` as errors show it.
std::string shown(const std::string& name) {
  std::string out;
  for (const char c : name.substr(0, 100)) out += c >= ' ' && c <= '~' ? c : '?';
  return out + (name.size() > 100 ? "..." : "");
}

/// The contents of raw deflate data; empty unless they are exactly `bytes` long.
std::string inflated(const std::string& stored, std::uint64_t bytes) {
  std::string out(bytes, '\0');
  z_stream stream{};
  if (stored.size() > std::numeric_limits<uInt>::max() || bytes > std::numeric_limits<uInt>::max() ||
      ::inflateInit2(&stream, -MAX_WBITS) != Z_OK)
    return {};
  stream.next_in = reinterpret_cast<Bytef*>(const_cast<char*>(stored.data()));  // zlib only reads it
  stream.avail_in = static_cast<uInt>(stored.size());
  stream.next_out = reinterpret_cast<Bytef*>(out.data());
  stream.avail_out = static_cast<uInt>(bytes);
  const int ended = ::inflate(&stream, Z_FINISH);
  const bool whole = ended == Z_STREAM_END && stream.total_out == bytes && stream.avail_in == 0;
  (void)::inflateEnd(&stream);
  return whole ? out : std::string();
}

struct RecordSpan {
  std::uint64_t begin = 0;  ///< of the local header
  std::uint64_t end = 0;
  std::size_t record = 0;
};

}  // namespace

MappedRecord::~MappedRecord() {
  if (length_ > 0) ::munmap(begin_, length_);
}

ZipArchive::ZipArchive(std::string path, Deflated deflated, Folder folder)
    : path_(std::move(path)), deflated_(deflated), folder_(folder) {
  file_ = ::open(path_.c_str(), O_RDONLY | O_CLOEXEC);
  if (file_ < 0) throw FormatError(ErrorKind::CannotRead, path_ + ": cannot read: " + std::strerror(errno));
  try {
    read_directory();
  } catch (...) {
    ::close(file_);
    throw;
  }
}

void ZipArchive::read_directory() {
  struct stat status{};
  if (::fstat(file_, &status) != 0)
    throw FormatError(ErrorKind::CannotRead, path_ + ": cannot read: " + std::strerror(errno));
  if (!S_ISREG(status.st_mode)) throw FormatError(ErrorKind::CannotRead, path_ + ": is not a file");
  const auto file_bytes = static_cast<std::uint64_t>(status.st_size);
  const auto directory = find_directory(file_, file_bytes);
  const Unzip zip(directory ? file_ : -1);
  if (!directory || zip.get() == nullptr)
    throw FormatError(
        ErrorKind::DamagedFile,
        path_ + ": is not a complete ZIP archive: no central directory at its end; the file may be truncated");
  unz_global_info64 global{};
  if (::unzGetGlobalInfo64(zip.get(), &global) != UNZ_OK || global.number_entry != directory->entries ||
      directory->entries > directory->bytes / kEntryBytes) {
    throw FormatError(
        ErrorKind::DamagedFile,
        fmt::format("{}: the end record lists {} records, the central directory differs", path_, directory->entries));
  }
  if (directory->entries > kMostRecords)
    throw FormatError(ErrorKind::DamagedFile, fmt::format("{}: found {} records, expected at most {}", path_,
                                                          directory->entries, kMostRecords));

  records_.reserve(directory->entries);
  std::vector<RecordSpan> spans;
  spans.reserve(directory->entries);
  std::uint64_t directory_bytes = 0;
  std::vector<char> name(kLongestName + 2);
  std::vector<unsigned char> header(kLocalHeaderBytes + kLongestName);
  for (std::uint64_t i = 0; i < directory->entries; ++i) {
    const int moved = i == 0 ? ::unzGoToFirstFile(zip.get()) : ::unzGoToNextFile(zip.get());
    unz_file_info64 info{};
    if (moved != UNZ_OK ||
        ::unzGetCurrentFileInfo64(zip.get(), &info, name.data(), name.size() - 1, nullptr, 0, nullptr, 0) != UNZ_OK) {
      throw FormatError(ErrorKind::DamagedFile,
                        fmt::format("{}: record {} of the central directory is damaged", path_, i));
    }
    if (i == 0 && static_cast<std::uint64_t>(::unzGetOffset64(zip.get())) != directory->offset)
      throw FormatError(ErrorKind::DamagedFile,
                        path_ + ": is not a complete ZIP archive: it has two central directories");
    directory_bytes += kEntryBytes + info.size_filename + info.size_file_extra + info.size_file_comment;
    ZipRecord record;
    record.name.assign(name.data(), std::min<std::size_t>(info.size_filename, kLongestName + 1));
    const auto fail = [&](const std::string& what) {
      throw FormatError(ErrorKind::DamagedFile, fmt::format("{}: record \"{}\": {}", path_, shown(record.name), what));
    };
    if (const std::string fault = fault_of_name(record.name, folder_); !fault.empty()) fail("found " + fault);
    // Bits 0, 6 and 13: encrypted, strongly, and with masked headers.
    if ((info.flag & 0x2041U) != 0) fail("is encrypted, expected a plain record");
    record.deflated = info.compression_method == Z_DEFLATED && deflated_ == Deflated::Read;
    if (info.compression_method != 0 && !record.deflated)
      fail(fmt::format("is compressed (method {}), expected a stored record, as torch.export.save writes",
                       info.compression_method));
    if (!record.deflated && info.compressed_size != info.uncompressed_size)
      fail(fmt::format("found {} bytes stored of {}, expected the same number", info.compressed_size,
                       info.uncompressed_size));
    record.bytes = info.uncompressed_size;
    record.stored_bytes = info.compressed_size;
    record.crc32 = static_cast<std::uint32_t>(info.crc);

    constexpr const char* kOther = "its local header is missing or differs from the central directory";
    int method = 0;
    int level = 0;
    if (info.disk_num_start != 0 || ::unzOpenCurrentFile2(zip.get(), &method, &level, 1) != UNZ_OK) fail(kOther);
    record.offset = ::unzGetCurrentFileZStreamPos64(zip.get());
    const int extra = ::unzGetLocalExtrafield(zip.get(), nullptr, 0);
    (void)::unzCloseCurrentFile(zip.get());
    const std::size_t header_bytes = kLocalHeaderBytes + record.name.size();
    if (extra < 0 || record.offset < header_bytes + static_cast<std::uint64_t>(extra)) fail(kOther);
    const std::uint64_t begin = record.offset - header_bytes - static_cast<std::uint64_t>(extra);
    if (record.stored_bytes > directory->offset || record.offset > directory->offset - record.stored_bytes)
      fail(fmt::format("lies outside the file: found {} bytes at {}, records end at {}", record.stored_bytes,
                       record.offset, directory->offset));
    if (!read_at(file_, begin, header.data(), header_bytes) || number_at(header, 0, 4) != 0x04034b50 ||
        number_at(header, 6, 2) != info.flag || number_at(header, 8, 2) != info.compression_method ||
        std::memcmp(header.data() + kLocalHeaderBytes, record.name.data(), record.name.size()) != 0) {
      fail(kOther);
    }
    spans.push_back({begin, record.offset + record.stored_bytes, records_.size()});
    records_.push_back(std::move(record));
  }
  if (directory_bytes != directory->bytes)
    throw FormatError(ErrorKind::DamagedFile,
                      fmt::format("{}: its central directory has {} bytes, its {} records need {}", path_,
                                  directory->bytes, directory->entries, directory_bytes));

  by_name_.resize(records_.size());
  std::iota(by_name_.begin(), by_name_.end(), std::size_t{0});
  const auto name_of = [&](std::size_t i) -> const std::string& { return records_[i].name; };
  std::ranges::sort(by_name_, {}, name_of);
  const auto twice = std::ranges::adjacent_find(by_name_, {}, name_of);
  if (twice != by_name_.end())
    throw FormatError(ErrorKind::DamagedFile,
                      fmt::format("{}: record \"{}\" appears twice", path_, records_[*twice].name));

  std::ranges::sort(spans, {}, &RecordSpan::begin);
  for (std::size_t i = 0; i < spans.size(); ++i) {
    const std::string& found = records_[spans[i].record].name;
    if (i == 0 && spans[i].begin != 0)
      throw FormatError(ErrorKind::DamagedFile, fmt::format("{}: record \"{}\" begins at {}, expected the first at 0",
                                                            path_, found, spans[i].begin));
    if (i > 0 && spans[i].begin < spans[i - 1].end)
      throw FormatError(ErrorKind::DamagedFile, fmt::format("{}: records \"{}\" and \"{}\" overlap", path_,
                                                            records_[spans[i - 1].record].name, found));
  }
}

ZipArchive::~ZipArchive() {
  if (file_ >= 0) ::close(file_);
}

ZipArchive::ZipArchive(ZipArchive&& other) noexcept
    : path_(std::move(other.path_)),
      deflated_(other.deflated_),
      folder_(other.folder_),
      file_(std::exchange(other.file_, -1)),
      records_(std::move(other.records_)),
      by_name_(std::move(other.by_name_)) {}

const ZipRecord* ZipArchive::find(const std::string& name) const {
  const auto name_of = [&](std::size_t i) -> const std::string& { return records_[i].name; };
  const auto found = std::ranges::lower_bound(by_name_, name, {}, name_of);
  return found == by_name_.end() || records_[*found].name != name ? nullptr : &records_[*found];
}

void ZipArchive::check_sum(const ZipRecord& record, const void* data) const {
  const uLong found = ::crc32_z(::crc32_z(0, nullptr, 0), static_cast<const Bytef*>(data), record.bytes);
  if (found != record.crc32) {
    throw FormatError(ErrorKind::DamagedFile,
                      fmt::format("{}: record \"{}\": found CRC {:08x}, expected {:08x}: the file is damaged", path_,
                                  record.name, found, record.crc32));
  }
}

std::string ZipArchive::read(const ZipRecord& record, std::uint64_t most) const {
  if (record.bytes > most)
    throw FormatError(ErrorKind::DamagedFile, fmt::format("{}: record \"{}\": found {} bytes, expected at most {}",
                                                          path_, record.name, record.bytes, most));
  std::string stored(record.stored_bytes, '\0');
  if (!read_at(file_, record.offset, stored.data(), stored.size()))
    throw FormatError(ErrorKind::DamagedFile,
                      fmt::format("{}: record \"{}\": the file was truncated", path_, record.name));
  std::string out = record.deflated ? inflated(stored, record.bytes) : std::move(stored);
  if (out.size() != record.bytes)
    throw FormatError(ErrorKind::DamagedFile,
                      fmt::format("{}: record \"{}\": does not inflate to the {} bytes that the directory lists", path_,
                                  record.name, record.bytes));
  check_sum(record, out.data());
  return out;
}

std::shared_ptr<MappedRecord> ZipArchive::map(const ZipRecord& record, bool check) const {
  if (record.deflated)
    throw FormatError(ErrorKind::DamagedFile, fmt::format("{}: record \"{}\": is compressed", path_, record.name));
  if (record.bytes == 0) return std::shared_ptr<MappedRecord>(new MappedRecord(nullptr, 0, {}));
  const auto page = static_cast<std::uint64_t>(::sysconf(_SC_PAGESIZE));
  const std::uint64_t before = record.offset % page;
  const std::size_t length = record.bytes + before;
  void* const begin =
      ::mmap(nullptr, length, PROT_READ | PROT_WRITE, MAP_PRIVATE, file_, static_cast<off_t>(record.offset - before));
  if (begin == MAP_FAILED) {
    throw DeviceError(
        fmt::format("{}: record \"{}\": cannot map {} bytes: {}", path_, record.name, length, std::strerror(errno)));
  }
  std::byte* const first = static_cast<std::byte*>(begin) + before;
  std::shared_ptr<MappedRecord> out(new MappedRecord(begin, length, {first, record.bytes}));
  if (check) check_sum(record, first);
  return out;
}

bool has_record_in_folder(const ZipArchive& archive, const std::string& name) {
  return std::ranges::any_of(archive.records(), [&](const ZipRecord& record) {
    const std::size_t slash = record.name.find('/');
    return slash != std::string::npos && record.name.substr(slash + 1) == name;
  });
}

namespace {

constexpr std::uint64_t kAlignment = 64;
constexpr std::uint64_t kExtraHeaderBytes = 4;
constexpr std::uint64_t kWideExtraBytes = 20;  ///< that minizip writes after ours for a record of 4 GiB or more
constexpr std::uint64_t kLargestNarrow = 0xfffffffe;
constexpr std::size_t kChunk = std::size_t{1} << 30;
constexpr unsigned long kMadeBy = 0;
constexpr unsigned long kUtf8Names = 0x0800;

/// An extra field "FB", like PyTorch's, that aligns the bytes after it to kAlignment.
std::vector<char> padding(std::uint64_t header_end) {
  const std::uint64_t end = header_end + kExtraHeaderBytes;
  const std::uint64_t fill = (kAlignment - end % kAlignment) % kAlignment;
  std::vector<char> out{'F', 'B', static_cast<char>(fill), 0};
  out.insert(out.end(), fill, 'Z');
  return out;
}

}  // namespace

ZipWriter::ZipWriter(std::string path) : path_(std::move(path)) {
  errno = 0;
  zip_ = ::zipOpen64(path_.c_str(), APPEND_STATUS_CREATE);
  if (zip_ == nullptr) check(ZIP_ERRNO);
}

ZipWriter::~ZipWriter() {
  if (zip_ == nullptr) return;
  (void)::zipCloseFileInZip(zip_);
  (void)::zipClose(zip_, nullptr);
  ::unlink(path_.c_str());
}

void ZipWriter::check(int status) const {
  if (status == ZIP_OK) return;
  throw FormatError(ErrorKind::CannotWrite,
                    path_ + ": cannot write: " + (errno != 0 ? std::strerror(errno) : "the archive writer failed"));
}

void ZipWriter::add(const std::string& name, std::span<const std::byte> bytes) {
  if (!names_.insert(name).second) throw std::invalid_argument(path_ + ": record \"" + name + "\" already exists");
  const bool wide = bytes.size() > kLargestNarrow;
  const std::uint64_t after = kLocalHeaderBytes + name.size() + (wide ? kWideExtraBytes : 0);
  const std::vector<char> extra = padding(offset_ + after);
  zip_fileinfo info{};
  errno = 0;
  check(::zipOpenNewFileInZip4_64(zip_, name.c_str(), &info, extra.data(), static_cast<uInt>(extra.size()), nullptr, 0,
                                  nullptr, /*method=*/0, /*level=*/0, /*raw=*/0, -MAX_WBITS, DEF_MEM_LEVEL,
                                  Z_DEFAULT_STRATEGY, nullptr, 0, kMadeBy, kUtf8Names, wide ? 1 : 0));
  for (std::size_t done = 0; done < bytes.size();) {
    const std::size_t count = std::min(bytes.size() - done, kChunk);
    check(::zipWriteInFileInZip(zip_, bytes.data() + done, static_cast<unsigned>(count)));
    done += count;
  }
  check(::zipCloseFileInZip(zip_));
  offset_ += after + extra.size() + bytes.size();
}

void ZipWriter::add(const std::string& name, const std::string& text) { add(name, std::as_bytes(std::span(text))); }

void ZipWriter::finish() {
  errno = 0;
  const int status = ::zipClose(std::exchange(zip_, nullptr), nullptr);
  if (status == ZIP_OK) return;
  ::unlink(path_.c_str());
  check(status);
}

}  // namespace stagecraft::files
