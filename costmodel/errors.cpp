#include "costmodel/errors.h"

#include <algorithm>
#include <new>

namespace stagecraft {

ErrorKind kind_of(const std::exception& error) {
  if (const auto* const with_kind = dynamic_cast<const HasErrorKind*>(&error)) return with_kind->kind();
  if (dynamic_cast<const std::invalid_argument*>(&error) != nullptr) return ErrorKind::BadInput;
  if (dynamic_cast<const std::bad_alloc*>(&error) != nullptr) return ErrorKind::OutOfMemory;
  return ErrorKind::Unexpected;
}

namespace {

/// As nearest_name; nothing if it takes more than `most` edits.
std::optional<std::string> nearest_within(std::size_t most, const std::string& name,
                                          const std::vector<std::string>& known) {
  std::optional<std::string> nearest;
  std::size_t fewest = most + 1;
  for (const std::string& candidate : known) {
    // Optimal string alignment: edits[i][j] for the first i characters of `name` and the first j of the candidate.
    std::vector<std::vector<std::size_t>> edits(name.size() + 1, std::vector<std::size_t>(candidate.size() + 1));
    for (std::size_t i = 0; i <= name.size(); ++i) {
      for (std::size_t j = 0; j <= candidate.size(); ++j) {
        if (i == 0 || j == 0) {
          edits[i][j] = i + j;
          continue;
        }
        const bool same = name[i - 1] == candidate[j - 1];
        edits[i][j] = std::min({edits[i - 1][j] + 1, edits[i][j - 1] + 1, edits[i - 1][j - 1] + (same ? 0 : 1)});
        if (i > 1 && j > 1 && name[i - 1] == candidate[j - 2] && name[i - 2] == candidate[j - 1]) {
          edits[i][j] = std::min(edits[i][j], edits[i - 2][j - 2] + 1);
        }
      }
    }
    if (edits.back().back() < fewest) {
      fewest = edits.back().back();
      nearest = candidate;
    }
  }
  return nearest;
}

}  // namespace

std::optional<std::string> nearest_name(const std::string& name, const std::vector<std::string>& known) {
  return nearest_within(std::max<std::size_t>(1, name.size() / 3), name, known);
}

std::string unknown_name(std::string_view what, std::string_view name, const std::vector<std::string>& known) {
  std::string out = "unknown " + std::string(what) + " \"" + std::string(name) + "\", ";
  // Among short names, one letter makes another word (tpu, cpu); what is longer than any name is no misspelling.
  if (name.size() >= 4 && name.size() <= 64) {
    const std::size_t most = name.size() < 6 ? 1 : 2;
    if (const auto nearest = nearest_within(most, std::string(name), known)) out += "did you mean " + *nearest + "? ";
  }
  out += "known are ";
  for (std::size_t i = 0; i < known.size(); ++i) out += (i ? ", " : "") + known[i];
  if (known.empty()) out += "none";
  return out;
}

std::string joined_words(const std::vector<std::string>& words, const std::string& conjunction) {
  std::string out;
  for (std::size_t i = 0; i < words.size(); ++i)
    out += (i == 0 ? "" : i + 1 < words.size() ? ", " : " " + conjunction + " ") + words[i];
  return out;
}

}  // namespace stagecraft
