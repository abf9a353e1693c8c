#pragma once

#include <string>
#include <vector>

#include "profiler/kernels/attribution.h"

// Kernel traces in formats of other programs. `layers` are the names of the layers, indexed by Tag::layer; a layer
// without a name is called "layer NUMBER". In text that is not UTF-8, U+FFFD replaces each invalid sequence.

namespace stagecraft::profiler {

/// The trace as Chrome trace events, for ui.perfetto.dev and chrome://tracing. Each device is a process with one track
/// for the host's launches, one for the layers and one per stream; an arrow leads from each launch to its work. A
/// layer's slice lasts from the first to the last of consecutive activities with the same tag and ends where the next
/// slice begins, because slices of a track must not overlap. The end of a launch is unknown: its slice is 1 us long, or
/// shorter if the next launch begins earlier. Times are microseconds with three decimals, and so exact, since the first
/// launch or activity, whose time is "begin_ns" in otherData. Each layer has one colour, given by "cname".
/// chrome://tracing shows it; Perfetto ignores it by design (google/perfetto issues 208, 620) and colours slices by
/// name, so there use the layers' track, or the layer in each kernel's args.
[[nodiscard]] std::string chrome_trace(const AttributedTrace& trace, const std::vector<std::string>& layers,
                                       const std::string& title);

/// CSV with a header and one line per activity: step, microbatch, phase, layer, kind, name, stream, begin_ns, end_ns,
/// bytes, launched_ns. For work without an owner, phase is "none" and step, microbatch and layer are empty. launched_ns
/// is empty if no launch was recorded. Quoting follows RFC 4180; lines end with a newline only.
[[nodiscard]] std::string activities_csv(const AttributedTrace& trace, const std::vector<std::string>& layers);

}  // namespace stagecraft::profiler
