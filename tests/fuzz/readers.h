#pragma once

#include <functional>
#include <ostream>
#include <string>
#include <vector>

namespace stagecraft::testing {

/// A reader, with valid documents to start from. `check` reads any text and returns true if the reader accepts it. It
/// throws std::logic_error if the accepted value does not survive writing and reading again, and lets every exception
/// except FormatError through.
struct FuzzedReader {
  std::string name;
  std::vector<std::string> seeds;
  std::function<bool(const std::string& text)> check;
};

/// For the names of tests.
inline std::ostream& operator<<(std::ostream& out, const FuzzedReader& reader) { return out << reader.name; }

/// All readers of costmodel/format and costmodel/project, and of the descriptions in their graphs.
[[nodiscard]] const std::vector<FuzzedReader>& fuzzed_readers();

}  // namespace stagecraft::testing
