#pragma once

#include <functional>
#include <string>
#include <vector>

namespace stagecraft::testing {

/// A reader with a valid document to begin from. `check` reads any text and gives true if the reader took it; it throws
/// std::logic_error if the reader took it and the value does not come back from what the writer makes of it, and lets
/// every exception but FormatError through.
struct FuzzedReader {
  std::string name;
  std::vector<std::string> seeds;
  std::function<bool(const std::string& text)> check;
};

/// All readers of costmodel/format, and of the descriptions in its graphs.
[[nodiscard]] const std::vector<FuzzedReader>& fuzzed_readers();

}  // namespace stagecraft::testing
