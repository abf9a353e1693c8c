#pragma once

#include <string>

#include "costmodel/format/document_schema.h"
#include "costmodel/graph.h"

namespace stagecraft::format {

// The rules of all readers and writers of documents. Each parse_* reads one document; `file` names it in messages. All
// throw FormatError "FILE: POINTER: found, expected" for text that is not JSON, another format or version, a missing or
// unknown key, a wrong type, a number out of range, or content that validate() refuses. read_* is read_text and parse_*
// together; "-" is standard input. Each *_json returns the text, the same bytes for the same value, ending in a
// newline. Each *_schema returns the document's JSON Schema.

[[nodiscard]] Graph parse_graph(const std::string& text, const std::string& file);
[[nodiscard]] Graph read_graph(const std::string& path);
[[nodiscard]] std::string graph_json(const Graph& graph);
[[nodiscard]] DocumentSchema graph_schema();

}  // namespace stagecraft::format
