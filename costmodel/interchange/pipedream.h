#pragma once

#include <string>

#include "costmodel/graph.h"

namespace stagecraft::interchange {

// PipeDream's profile text (graph.txt): one line per layer, "ID -- DESC -- forward_compute_time=MS,
// backward_compute_time=MS, activation_size=BYTES, parameter_size=BYTES", optionally " -- stage_id=N", then one line
// "<tab>SOURCE -- DESTINATION" per edge. Source: github.com/msr-fiddle/pipedream, its profiles.
//
// Whatever Graph has no field for is in Graph::provenance.notes, so that a profile is written back byte for byte:
//   pipedream.activation_decimals   decimals of most activation sizes in the file; absent: 3
//   pipedream.final_newlines        line ends after the last line; absent: 1
//   pipedream.line_ends             "crlf" if lines end so; absent: "lf"
//   pipedream.KEY.ID                the text of field KEY of layer ID where the usual form would differ ("[4.0]", "7",
//                                   "0.12345"); ignored if the layer's value has changed

/// The graph of a profile. Layer::id is ID, name is DESC, kind is DESC up to its first "(", or kInputKind if DESC
/// begins with "Input"; a list of activation sizes gives one output per entry; edges name no output; times count 0
/// samples. Layers and edges keep the file's order; the graph is named after the file without its extension. Lines may
/// end in "\n" or all in "\r\n".
/// Throws FormatError "FILE: line N: found, expected" for text that is not UTF-8, mixed line ends, a malformed line, a
/// time or byte count that is negative, not finite, too large or (bytes) not an integer, a repeated id or edge, an edge
/// to a layer that was not declared above, into an input, or that closes a cycle, no layers.
[[nodiscard]] Graph parse_pipedream(const std::string& text, const std::string& file);

/// The profile text of `graph`. DESC is the name if it begins with the kind, as in imported graphs, otherwise
/// "KIND(NAME)". Edges between the same two layers are one line; times round to microseconds. What the format cannot
/// express (spreads, shapes, optimizer, ...) is omitted.
/// Throws std::invalid_argument naming the layer whose id or name contains " -- " or a line end, or begins with "Input"
/// without being an input.
[[nodiscard]] std::string pipedream_text(const Graph& graph);

}  // namespace stagecraft::interchange
