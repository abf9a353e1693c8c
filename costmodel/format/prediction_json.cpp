#include "costmodel/format/prediction_json.h"

#include "costmodel/format/files/files.h"
#include "costmodel/format/shared_notations.h"

namespace stagecraft::format {
namespace {

Notation<FigureSource> source() { return words("source", FigureSource::Calibrated, "Where the figure comes from."); }

Notation<Range<Seconds>> time_range() {
  using R = Range<Seconds>;
  return object<R>(
             {
                 required("low", &R::low, not_negative(), "Lower end, seconds."),
                 required("high", &R::high, not_negative(), "Upper end, seconds."),
                 required("source", &R::source, source()),
             },
             "90 % interval of a figure in seconds.")
      .named("time_range");
}

Notation<Range<Bytes>> bytes_range() {
  using R = Range<Bytes>;
  return object<R>(
             {
                 required("low", &R::low, bytes(), "Lower end, bytes."),
                 required("high", &R::high, bytes(), "Upper end, bytes."),
                 required("source", &R::source, source()),
             },
             "90 % interval of a figure in bytes.")
      .named("bytes_range");
}

Notation<StageRanges> stage_ranges() {
  using R = StageRanges;
  return object<R>({
      required("forward_s", &R::forward, time_range()),
      required("backward_s", &R::backward, time_range()),
      required("compute_s", &R::compute, time_range()),
      required("update_s", &R::update, time_range()),
      required("reduce_s", &R::reduce, time_range()),
      required("exposed_transfer_s", &R::exposed_transfer, time_range()),
      required("bubble_s", &R::bubble, time_range()),
      required("memory_bytes", &R::memory, bytes_range()),
  });
}

Notation<StagePrediction> stage() {
  using S = StagePrediction;
  return object<S>(
             {
                 required("stage", &S::stage, whole(), "Stage number."),
                 required("replicas", &S::replicas, integer(1, kMost), "Number of replicas."),
                 required("forward_s", &S::forward, not_negative(),
                          "One microbatch's forward, including the slowdown by other ranks of its host, seconds"),
                 required("backward_s", &S::backward, not_negative(),
                          "One microbatch's backward, including the slowdown by other ranks of its host, seconds"),
                 required("compute_s", &S::compute, not_negative(), "Forwards and backwards of a step, seconds"),
                 required("update_s", &S::update, not_negative(), "Optimizer, seconds"),
                 required("reduce_s", &S::reduce, not_negative(),
                          "Gradient all-reduce, from the arrival of its last member, seconds"),
                 required("exposed_transfer_s", &S::exposed_transfer, not_negative(),
                          "Idle while the message it needed was on the link, seconds"),
                 required("bubble_s", &S::bubble, not_negative(),
                          "Idle otherwise, including before a reduce and without a microbatch, seconds"),
                 required("in_flight_microbatches", &S::in_flight, whole(),
                          "Largest number of microbatches held at once."),
                 required("memory", &S::memory, rank_memory()),
                 required("fits", &S::fits, boolean(), "Within the device's memory, if the topology gives one."),
                 optional("ranges", &S::ranges, stage_ranges(),
                          "90 % intervals of the figures of the same names; of memory, of its total. Absent: none were "
                          "made.")
                     .then([](const Cursor&, S& stage) { stage.memory_bound = stage.ranges->memory.high; }),
             },
             "One stage's share of a step, the mean over its replicas.")
      .named("stage");
}

Notation<ScalePoint> scale_point() {
  using S = ScalePoint;
  return object<S>({
      required("copies", &S::copies, integer(1, kMost), "Copies of the plan."),
      required("devices", &S::devices, integer(1, kMost), "Devices of the topology."),
      required("microbatches", &S::microbatches, integer(1, kMost), "Microbatches of a step, of all copies."),
      required("iteration_s", &S::iteration, not_negative(), "One step, seconds"),
      required("iteration_low_s", &S::low, not_negative(), "Lower end of a 90 % interval of one step, seconds."),
      required("iteration_high_s", &S::high, not_negative(), "Upper end of a 90 % interval of one step, seconds."),
      optional("samples_per_s", &S::samples_per_s, not_negative(),
               "Samples per second; absent if the graph does not give its microbatch."),
      required("efficiency", &S::efficiency, not_negative(), "Throughput per device over that of one copy."),
      required("efficiency_low", &S::efficiency_low, not_negative(), "Lower end of its 90 % interval."),
      required("efficiency_high", &S::efficiency_high, not_negative(), "Upper end of its 90 % interval."),
      required("fits", &S::fits, boolean(), "Whether all stages fit in memory."),
  });
}

Notation<MemoryOverTime> memory_over_time() {
  const auto moment = object<MemoryMoment>({
      required("from_s", &MemoryMoment::from, not_negative(), "When it begins, seconds"),
      required("bytes", &MemoryMoment::bytes, bytes(), "Bytes held from then on."),
  });
  return object<MemoryOverTime>({
      required("rank", &MemoryOverTime::rank, whole(), "The rank."),
      required("moments", &MemoryOverTime::moments, list(moment), "In ascending order of time."),
  });
}

FieldList<Prediction> figures() {
  const auto device_list = list<int>(whole("Device number."));
  return fields<Prediction>(
      {{
           required("iteration_s", &Prediction::iteration, not_negative(), "One step, seconds"),
           optional("iteration_low_s", &Prediction::low, not_negative(),
                    "Lower end of a 90 % interval of one step, seconds."),
           optional("iteration_high_s", &Prediction::high, not_negative(),
                    "Upper end of a 90 % interval of one step, seconds."),
           optional("interval", &Prediction::interval, text(),
                    "What the interval of the step comes from, in words: each source's share of the variance and its "
                    "own half-width; absent: unknown."),
           optional("calibration", &Prediction::calibration, text(),
                    "The factors in the figures and what they were learned from; absent: none."),
           optional("samples_per_s", &Prediction::samples_per_s, not_negative(),
                    "Samples per second; absent if the graph does not give its microbatch."),
       },
       embedded(&Prediction::rates, rates_fields()),
       {
           required("bubble", &Prediction::bubble, finite(),
                    "Share of all ranks' time that is neither compute, update nor reduce; a ratio."),
           optional("devices", &Prediction::devices, integer(1, kMost), "Number of devices of the topology."),
           optional("unused_devices", &Prediction::unused_devices, device_list,
                    "Devices that are not in any stage; absent if there are none."),
           optional("idle_devices", &Prediction::idle_devices, device_list,
                    "Devices of stages with more replicas than microbatches that have no microbatch; absent if there "
                    "are none."),
       }});
}

FieldList<Prediction> assumptions() {
  return {
      optional("yardstick", &Prediction::yardstick, yardstick(),
               "The yardstick of the graph's measurement: how fast the device was meanwhile: times of fixed work with "
               "the threads of the measured work."),
      optional("other_device", &Prediction::other_device, text(),
               "Why the times are for a device other than the topology's, so that no figure here is valid for it; "
               "absent if no difference is known."),
      optional("backward_parts", &Prediction::backward_parts, text(),
               "What is assumed about the two parts of a split backward because the graph does not have them; absent "
               "if nothing is."),
      optional("channel", &Prediction::channel, text(),
               "Channel over which the links were measured, such as \"gloo\"; absent: unknown, or there is one rank. "
               "Since version 4."),
      optional("changes", &Prediction::changes, list(text("A setting and its value.")),
               "Changes to the graph, topology and plan before they were used, such as \"compute=0.8x\"; absent: none. "
               "Since version 6."),
      optional("extrapolated_microbatches", &Prediction::reckoned_microbatches, whole(),
               "Microbatches in the middle of a long step that were not replayed: the timeline has a gap for them. "
               "Absent: 0. Since version 7."),
      optional("message_processing", &Prediction::message_processing, text(),
               "What is assumed about the processor time of messages because the topology does not give it; absent: "
               "nothing. Since version 4."),
  };
}

const Document<Prediction>& prediction_document() {
  static const Document<Prediction> document(
      {.name = "prediction",
       .version = 8,
       .title = "Prediction",
       .help = "The predicted behaviour of a plan: time, throughput, memory and the timeline of one step. Written by "
               "stagecraft predict.",
       .changes =
           "Version 2 added devices, unused_devices, idle_devices and other_device; reduce_s no longer includes the "
           "wait for other members, forward_s and backward_s include the slowdown by other ranks of the host. Version "
           "3 added backward_parts, yardstick, iteration_low_s, iteration_high_s and calibration. Version 4 added "
           "channel, message_processing, interval and ranges; iteration_low_s and iteration_high_s are also written "
           "without a calibration. Version 5 added scaling and memory_over_time. Version 6 added changes. Version 7 "
           "added extrapolated_microbatches. Version 8 added tokens_per_s, flops_per_s, peak_share, peak_of and "
           "provenance."},
      fields<Prediction>(
          {figures(),
           {required("stages", &Prediction::stages, list(stage()), "The stages in order.")},
           assumptions(),
           {
               optional("scaling", &Prediction::scaling, list(scale_point()),
                        "Copies of the plan side by side, one entry per number of copies; absent: not asked for."),
               optional("memory_over_time", &Prediction::memory_over_time, list(memory_over_time()),
                        "What the first replica of each pipeline position holds from each moment of the timeline on; "
                        "absent: unknown."),
               provenance_field(&Prediction::provenance),
               required("timeline", &Prediction::timeline, timeline()),
           }}));
  return document;
}

}  // namespace

Prediction parse_prediction(const std::string& text, const std::string& file) {
  return prediction_document().parse(text, file);
}
Prediction read_prediction(const std::string& path) { return parse_prediction(read_text(path), path); }
std::string prediction_json(const Prediction& prediction) { return prediction_document().text(prediction); }
DocumentSchema prediction_schema() { return prediction_document().schema(); }

}  // namespace stagecraft::format
