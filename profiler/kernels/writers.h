#pragma once

#include <map>
#include <string>
#include <vector>

#include "profiler/kernels/attribution.h"
#include "profiler/kernels/shares.h"

// What a kernel trace looks like in other programs. `layers` are the names that Tag::layer indexes; a layer without a
// name is called "layer NUMBER". Text that is not UTF-8 has U+FFFD in place of what is wrong with it.

namespace stagecraft {

/// The trace as Chrome trace events, for ui.perfetto.dev and chrome://tracing: one process a device, and in it a track
/// for the host's launches, one for the layers and one a stream, with an arrow from each launch to its work. A layer
/// lasts from the first to the last of consecutive activities with one tag, and is cut where the next one begins, since
/// slices of a track may not overlap. Of a launch only its begin is known: it is drawn 1 us long, or less where the
/// next one follows sooner. Times are microseconds with three decimals, so exact, counted from the first launch or
/// activity; "begin_ns" in otherData tells when that was. Each layer has one colour, given by "cname". chrome://tracing
/// honours it; Perfetto ignores it by design (google/perfetto issues 208, 620) and colours by a slice's name: there the
/// layers' track shows the layers, and args hold the layer of each kernel.
[[nodiscard]] std::string chrome_trace(const AttributedTrace& trace, const std::vector<std::string>& layers,
                                       const std::string& title);

/// A line for each activity after a line of names: step, microbatch, phase, layer, kind, name, stream, begin_ns,
/// end_ns, bytes, launched_ns. The first four are empty, "none" and empty for nobody's work; launched_ns is empty where
/// no launch was seen. Quoting as RFC 4180, lines end in a newline alone.
[[nodiscard]] std::string activities_csv(const AttributedTrace& trace, const std::vector<std::string>& layers);

/// A line for each part of each step (keys are the steps' numbers) after a line of names: step, layer, phase, busy_ns,
/// active_ns, gap_ns, share_ns, span_ns, activities. `layer` is empty for data and for nobody's work.
[[nodiscard]] std::string shares_csv(const std::map<int, StepShares>& steps, const std::vector<std::string>& layers);

}  // namespace stagecraft
