#include "costmodel/format/shared_notations.h"

#include "costmodel/index.h"

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

FieldList<StateTypes> state_types_fields() {
  const auto type = words("type", StateType::Bfloat16);
  return {
      optional("parameter_dtype", &StateTypes::parameters, type,
               "Type of the parameters; the optimizer keeps float32 master values of parameters in bfloat16. Absent: "
               "float32."),
      optional("gradient_dtype", &StateTypes::gradients, type,
               "Type in which gradients are added up over microbatches and replicas. Absent: float32."),
      optional("moment_dtype", &StateTypes::moments, type, "Type of the optimizer's moments. Absent: float32."),
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

namespace {

Notation<std::map<MemoryPart, Bytes>> parts_of_memory() {
  const Notation<MemoryPart> names = words("part of memory", MemoryPart::Workspace);
  const Notation<Bytes> part = integer(0, Cursor::kMostBytes, "One part, bytes");
  return {[part](const Cursor& at) {
            if (!at.value().is_object()) at.fail_type("an object");
            std::map<MemoryPart, Bytes> out;
            for (const auto& [key, value] : at.value().items()) {
              const Cursor one = at.inside(value);
              try {
                out[memory_part(key)] = part.read(one);
              } catch (const std::invalid_argument& e) { one.fail(e.what()); }
            }
            return out;
          },
          [part](const std::map<MemoryPart, Bytes>& parts) {
            Json out = Json::object();
            for (const auto& [name, bytes] : parts) out[to_string(name)] = part.write(bytes);
            return out;
          },
          [names, part](Json& definitions) {
            Json out = typed_schema("object", "");
            out["propertyNames"]["enum"] = names.schema(definitions)["enum"];
            out["additionalProperties"] = part.schema(definitions);
            return out;
          }};
}

Notation<StepTime> step_time_notation() {
  return object<StepTime>(
             {
                 required("step", &StepTime::step, whole(), "Step number."),
                 required("start_s", &StepTime::start, finite(), "First action's start, seconds"),
                 required("end_s", &StepTime::end, finite(), "Last action's end, not before start_s, seconds"),
             },
             "Begin and end of a step, over all ranks.",
             [](const Cursor& at, StepTime& step) {
               if (step.end < step.start) at.fail("the step ends before it starts");
             })
      .named("step");
}

/// A span is a row of these columns: files hold hundreds of thousands of them.
FieldList<Span> columns() {
  const Integer or_none = integer(-1, kMost);
  return {
      required("action", path(&Span::action, &Action::kind), action(""), "Kind of action."),
      required("rank", &Span::rank, whole(), "Its rank, below ranks."),
      required("step", &Span::step, whole(), "Step number."),
      required("stage", path(&Span::action, &Action::stage), whole(), "Its stage."),
      required("microbatch", path(&Span::action, &Action::microbatch), or_none, "Microbatch; -1: none."),
      required("peer", path(&Span::action, &Action::peer), or_none, "The other stage of a transfer; -1: none."),
      required("start_s", &Span::start, finite(), "Start, seconds"),
      required("end_s", &Span::end, finite(), "End, seconds"),
  };
}

Field<Timeline> column_names() {
  Json names = Json::array();
  for (const AnyField& column : columns().all) names.push_back(column.key);
  Field<Timeline> out{{.key = "columns", .help = "Columns of a span, in order."}};
  out.read = [names](const Cursor& at, void*) {
    if (at.value() != names) at.fail_type(names.dump());
  };
  out.write = [names](const void*) { return names; };
  out.schema = [names](Json&) { return Json{{"const", names}}; };
  return out;
}

/// Refuses an element of the list at `at` that is of a rank that the timeline does not have.
template <class T>
void check_ranks(const Cursor& at, const std::vector<T>& of_ranks, const Timeline& timeline) {
  for (std::size_t i = 0; i < of_ranks.size(); ++i) {
    if (of_ranks[i].rank < timeline.ranks) continue;
    at.at(i).fail("rank " + std::to_string(of_ranks[i].rank) + " does not exist, the timeline has 0.." +
                  std::to_string(timeline.ranks - 1));
  }
}

}  // namespace

Notation<RankMemory> rank_memory() {
  return object<RankMemory>(
             {
                 required("rank", &RankMemory::rank, whole(), "Rank number."),
                 required("total_bytes", &RankMemory::total, bytes(), "Total peak, bytes"),
                 required("parts_bytes", &RankMemory::parts, parts_of_memory(),
                          "Parts of the peak, by name; a prediction's parts add up to the total."),
             },
             "Peak memory of one rank.")
      .named("memory");
}

Notation<Timeline> timeline() {
  const auto span =
      row<Span>(columns(), "One action; it ends no earlier than it starts.", [](const Cursor& at, Span& read) {
        if (read.end < read.start) at.fail("the span ends before it starts");
      });
  return object<Timeline>(
             {
                 required("ranks", &Timeline::ranks, integer(1, kMost), "Number of ranks."),
                 required("stage_of_rank", &Timeline::stage_of_rank, list<int>(whole("Stage number.")),
                          "Stage of each rank, one number per rank.")
                     .then([](const Cursor& at, Timeline& timeline) {
                       if (timeline.stage_of_rank.size() == to_index(timeline.ranks)) return;
                       at.fail(std::to_string(timeline.stage_of_rank.size()) + " entries for " +
                               std::to_string(timeline.ranks) + " ranks");
                     }),
                 required("steps", &Timeline::steps, list(step_time_notation()), "The steps in order."),
                 required("memory", &Timeline::memory, list(rank_memory()), "Peak memory of ranks.")
                     .then([](const Cursor& at, Timeline& timeline) { check_ranks(at, timeline.memory, timeline); }),
                 column_names(),
                 required("spans", &Timeline::spans, list(span),
                          "Actions, one row each: files hold hundreds of thousands of them.")
                     .then([](const Cursor& at, Timeline& timeline) { check_ranks(at, timeline.spans, timeline); }),
             },
             "Spans of work and waiting on each rank.")
      .named("timeline");
}

}  // namespace stagecraft::format
