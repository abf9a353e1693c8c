#include "costmodel/format/timeline_json.h"

#include "costmodel/format/files/files.h"
#include "costmodel/format/shared_notations.h"

namespace stagecraft::format {
namespace {

Notation<KeptSpans> kept_spans() {
  return object<KeptSpans>({
      required("first", &KeptSpans::first, whole(), "Number of first steps."),
      required("last", &KeptSpans::last, whole(), "Number of last steps."),
      required("every", &KeptSpans::every, integer(1, kMost), "Distance of the steps between; 1: all steps."),
  });
}

/// Version 1 has the spans of all steps and was written at the end.
const Document<Measurement>& timeline_document() {
  static const Document<Measurement> document(
      {.name = "timeline",
       .version = 4,
       .title = "Timeline",
       .help = "The measurement of a run: losses and the timeline. Written by stagecraft run.",
       .changes = "Version 2 added ended and kept_spans, version 3 conditions, version 4 channel."},
      {
          required("model", &Measurement::model, text(), "Name of the model."),
          required("schedule", &Measurement::schedule, text(), "Name of the schedule."),
          required("microbatches", &Measurement::microbatches, integer(1, kMost), "Microbatches in a step."),
          optional("microbatch_samples", &Measurement::microbatch_samples, integer(1, kMany),
                   "Samples in one microbatch."),
          required("losses", &Measurement::losses, list(number_or_null("Loss; null: not finite.")),
                   "One per step, the mean over the step's samples."),
          optional("ended", &Measurement::ended, boolean(),
                   "False if written before the end of the run, which continues or died.")
              .always(),
          optional("kept_spans", &Measurement::kept, kept_spans(),
                   "The steps whose spans the timeline holds: the first, the last, and every n-th, counted from the "
                   "first. Losses and times are those of all steps.")
              .always(),
          required("timeline", &Measurement::timeline, timeline()),
          optional("channel", &Measurement::channel, text(),
                   "Channel between the ranks, such as \"gloo\"; absent: unknown. Since version 4."),
          conditions_field(&Measurement::conditions),
          provenance_field(&Measurement::provenance),
      });
  return document;
}

}  // namespace

Measurement parse_measurement(const std::string& text, const std::string& file) {
  return timeline_document().parse(text, file);
}
Measurement read_measurement(const std::string& path) { return parse_measurement(read_text(path), path); }
std::string measurement_json(const Measurement& measurement) { return timeline_document().text(measurement); }
DocumentSchema measurement_schema() { return timeline_document().schema(); }

}  // namespace stagecraft::format
