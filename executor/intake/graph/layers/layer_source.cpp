#include "executor/intake/graph/layers/layer_source.h"

#include <algorithm>
#include <stdexcept>

#include "costmodel/errors.h"
#include "costmodel/text/number.h"
#include "executor/files/zip_archive.h"

namespace stagecraft::intake {
namespace {

/// FROM..TO.
std::pair<std::int64_t, std::int64_t> parse_range(const std::string& key, const std::string& text) {
  if (const std::size_t dots = text.find(".."); dots != std::string::npos) {
    const std::optional<std::int64_t> from = number_in<std::int64_t>(text.substr(0, dots));
    const std::optional<std::int64_t> to = number_in<std::int64_t>(text.substr(dots + 2));
    if (from && to && *from < *to) return {*from, *to};
  }
  throw std::invalid_argument("setting " + key + " is \"" + text +
                              "\", expected FROM..TO, such as 0..50257 for 0 to 50256");
}

}  // namespace

const std::vector<std::string>& import_settings() {
  static const std::vector<std::string> known{"layers", "loss", "loss_output", "range.NAME", "input.NAME", "samples"};
  return known;
}

void check_import_settings(const ModelSettings& settings) {
  for (const auto& [key, value] : settings) {
    const bool known = std::ranges::find(import_settings(), key) != import_settings().end();
    if (!known && !key.starts_with("range.") && !key.starts_with("input."))
      throw InputError(ErrorKind::UnknownName, unknown_name("setting", key, import_settings()));
  }
}

std::string setting(const ModelSettings& settings, const std::string& key, const std::string& otherwise) {
  const auto it = settings.find(key);
  return it == settings.end() ? otherwise : it->second;
}

std::map<std::string, std::pair<std::int64_t, std::int64_t>> input_ranges(const ModelSettings& settings) {
  std::map<std::string, std::pair<std::int64_t, std::int64_t>> out;
  for (const auto& [key, text] : settings) {
    if (key.starts_with("range.")) out[key.substr(6)] = parse_range(key, text);
  }
  return out;
}

std::uint64_t archive_digest(const std::string& path) {
  const files::ZipArchive archive(path, files::ZipArchive::Deflated::Read);
  std::uint64_t out = 0;
  for (const files::ZipRecord& record : archive.records())
    out = model::mix_seed(out, record.name, record.crc32, record.bytes);
  return out;
}

}  // namespace stagecraft::intake
