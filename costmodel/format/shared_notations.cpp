#include "costmodel/format/shared_notations.h"

namespace stagecraft::format {

Notation<DeviceKind> device_kind() {
  return words<DeviceKind>("kind", {{"processor", DeviceKind::Processor}, {"gpu", DeviceKind::Gpu}});
}

Integer processors() { return integer(1, 1 << 20); }

Notation<ActionKind> action(const char* help) { return words("action", ActionKind::Update, help); }

Notation<Yardstick> yardstick() {
  const auto times = object<YardstickTimes>({
      required("work", &YardstickTimes::work, text(), "What it does; equal names are equal work."),
      required("before_s", &YardstickTimes::before, positive(),
               "Reading before the measurement, seconds. A reading is the median of several runs in a row."),
      required("after_s", &YardstickTimes::after, positive(), "Reading after the measurement, seconds."),
      required("median_s", &YardstickTimes::median, positive(), "Median of all readings, seconds."),
      required("fastest_s", &YardstickTimes::fastest, positive(), "Shortest reading, seconds."),
      required("slowest_s", &YardstickTimes::slowest, positive(), "Longest reading, seconds."),
      required("readings", &YardstickTimes::readings, integer(1, kMost),
               "Number of readings: before, after and in pauses."),
  });
  return object<Yardstick>({
      required("device", &Yardstick::device, text(), "Model of the processor or GPU."),
      required("threads", &Yardstick::threads, processors(), "Threads of the fixed work."),
      required("works", &Yardstick::works, filled_list(times, "one work or more"), "Pieces of fixed work."),
  });
}

Notation<Conditions> conditions() {
  const auto use = object<ProcessorUse>({
      required("ours", &ProcessorUse::ours, not_negative(), "Processors busy with what was measured."),
      required("others", &ProcessorUse::others, not_negative(),
               "Processors busy with other programs, or taken by the hypervisor."),
      required("processors", &ProcessorUse::count, processors(), "All processors of the host."),
  });
  return object<Conditions>({
      optional("hosts", &Conditions::hosts, list(use),
               "Average number of busy processors of each host, by first rank."),
      optional("yardstick", &Conditions::yardstick, yardstick(),
               "How fast the device was meanwhile: times of fixed work with the threads of the measured work."),
  });
}

Notation<Drift> drift(const char* ratio, const FieldList<Drift>& earlier) {
  const auto work = object<WorkDrift>({
      required("work", &WorkDrift::work, text(), "What it does."),
      required("ratio", &WorkDrift::ratio, positive(), ratio),
  });
  return object(
      fields<Drift>({{required("factor", &Drift::factor, positive(), "Geometric mean of the ratios."),
                      required("works", &Drift::works, filled_list(work, "one work or more"), "Pieces of fixed work.")},
                     earlier}));
}

Notation<Provenance> provenance() {
  return object<Provenance>(
             {
                 optional("tool", &Provenance::tool, text(), "Program and version that wrote the document."),
                 optional("device", &Provenance::device, text(), "Model of the measured processor or GPU."),
                 optional("versions", &Provenance::versions, text_map(), "Library and driver versions by name."),
                 optional("date", &Provenance::date, text(), "ISO 8601, UTC."),
                 optional("notes", &Provenance::notes, text_map(),
                          "Anything else, by name; keys beginning with \"pipedream.\" preserve the text of an imported "
                          "PipeDream profile."),
             },
             "Origin of the document; comparisons of documents ignore it.")
      .named("provenance");
}

FieldList<StateTensor> state_tensor_fields() {
  return {
      required("name", &StateTensor::name, text().with("minLength", 1),
               "Its name in the model. Layers that share a tensor give it one name."),
      required("shape", &StateTensor::shape, list<std::int64_t>(integer(0, Cursor::kMostBytes, "Size.")), "Its sizes."),
      required("dtype", &StateTensor::dtype, text(), "float32, int64, ..."),
  };
}

FieldList<WorkRates> rates_fields() {
  return {
      optional("tokens_per_s", &WorkRates::tokens_per_s, not_negative(),
               "Tokens per second; absent if the model does not read tokens."),
      optional("flops_per_s", &WorkRates::flops_per_s, not_negative(),
               "Floating-point operations per second of all devices together, without what recomputation repeats; "
               "absent if the graph does not count them for every layer."),
      optional("peak_share", &WorkRates::peak_share, not_negative(),
               "flops_per_s over the peak of the plan's devices (MFU), a ratio; absent if the peak of one is unknown."),
      optional("peak_of", &WorkRates::peak_of, text(),
               "The devices whose peak it is, with the type of the computation."),
  };
}

Notation<StepRatio> step_ratio(const char* key) {
  return object<StepRatio>({
      required(key, &StepRatio::ratio, finite(), "Ratio of the times."),
      required("low", &StepRatio::low, finite(), "Lower end of its 90 % interval."),
      required("high", &StepRatio::high, finite(), "Upper end of its 90 % interval."),
      required("faster_probability", &StepRatio::first_faster, share(), "Probability that the ratio is below 1."),
  });
}

FieldList<Prediction> predicted_step_fields() {
  return {
      required("iteration_s", &Prediction::iteration, not_negative(), "One step, seconds."),
      optional("iteration_low_s", &Prediction::low, not_negative(), "Lower end of its 90 % interval, seconds."),
      optional("iteration_high_s", &Prediction::high, not_negative(), "Upper end of its 90 % interval, seconds."),
      optional("samples_per_s", &Prediction::samples_per_s, not_negative(),
               "Samples per second; absent if the graph does not give its microbatch."),
  };
}

}  // namespace stagecraft::format
