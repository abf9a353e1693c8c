#include "executor/files/zip_writer.h"

#include <minizip/zip.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <stdexcept>
#include <utility>
#include <vector>

#include "costmodel/errors.h"

namespace stagecraft::files {
namespace {

constexpr std::uint64_t kAlignment = 64;
constexpr std::uint64_t kLocalHeaderBytes = 30;
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
