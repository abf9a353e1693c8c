#pragma once

#include <functional>
#include <string>
#include <variant>
#include <vector>

#include "costmodel/graph.h"
#include "costmodel/topology.h"

namespace stagecraft {

/// A file that was read, under the name that messages use.
struct SourceFile {
  std::string text;
  std::string name;
};

/// What another program writes, and how it becomes ours. Both functions throw FormatError or std::invalid_argument as
/// the format's own reader and writer do; a format of one file refuses several.
struct ForeignFormat {
  std::string name;
  std::string what;  ///< for people: whose file, and whether it gives a graph or a topology
  std::function<std::variant<Graph, Topology>(const std::vector<SourceFile>&)> read;
  std::function<std::string(const Graph&)> write;  ///< empty: there is no way back
};

/// All of them, by name.
[[nodiscard]] const std::vector<ForeignFormat>& foreign_formats();

/// The format of that name among `formats`. Throws std::invalid_argument with the known names.
[[nodiscard]] const ForeignFormat& find_format(const std::vector<ForeignFormat>& formats, const std::string& name);

/// "NAME (WHAT), NAME (WHAT)".
[[nodiscard]] std::string format_list(const std::vector<ForeignFormat>& formats);

}  // namespace stagecraft
