#pragma once

#include <functional>
#include <string>
#include <variant>
#include <vector>

#include "costmodel/graph.h"
#include "costmodel/interchange/problems/dnn_partitioning.h"
#include "costmodel/topology.h"

namespace stagecraft::interchange {

/// A file that was read, with its name for messages.
struct SourceFile {
  std::string text;
  std::string name;
};

/// Another program's format, and the conversion to and from ours. Both functions throw FormatError or
/// std::invalid_argument as the format's own reader and writer do; a format with a single file refuses several.
struct ForeignFormat {
  std::string name;
  std::string what;  ///< for messages: the program, and whether its file is a graph or a topology
  std::function<std::variant<Graph, Topology>(const std::vector<SourceFile>&)> read;
  std::function<std::string(const Graph&)> write;  ///< empty if the format cannot be written
  /// Replaces `read` for a format whose published files have wrong units; the graph's note "units" says how its numbers
  /// were read.
  std::function<Graph(const std::vector<SourceFile>&, Units)> read_units = {};
};

/// All of them, by name.
[[nodiscard]] const std::vector<ForeignFormat>& foreign_formats();

/// The format of that name among `formats`. Throws std::invalid_argument with the known names.
[[nodiscard]] const ForeignFormat& find_format(const std::vector<ForeignFormat>& formats, const std::string& name);

/// "NAME (WHAT), NAME (WHAT)".
[[nodiscard]] std::string format_list(const std::vector<ForeignFormat>& formats);

}  // namespace stagecraft::interchange
