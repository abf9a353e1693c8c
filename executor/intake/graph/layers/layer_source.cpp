#include "executor/intake/graph/layers/layer_source.h"

#include "executor/files/zip_archive.h"

namespace stagecraft::intake {

std::uint64_t archive_digest(const std::string& path) {
  const files::ZipArchive archive(path, files::ZipArchive::Deflated::Read);
  std::uint64_t out = 0;
  for (const files::ZipRecord& record : archive.records())
    out = model::mix_seed(out, record.name, record.crc32, record.bytes);
  return out;
}

}  // namespace stagecraft::intake
