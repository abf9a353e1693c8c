// What a user brings: graphs, topologies, plans, measured runs, calibrations.

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <numeric>
#include <string>
#include <vector>

#include "costmodel/accuracy/calibrate.h"
#include "costmodel/bound_plan.h"
#include "costmodel/format/graph_json.h"
#include "costmodel/format/plan_json.h"
#include "costmodel/format/results/accuracy_json.h"
#include "costmodel/format/timeline_json.h"
#include "costmodel/format/topology_json.h"
#include "costmodel/graph.h"
#include "costmodel/plan.h"
#include "costmodel/prediction/memory.h"
#include "costmodel/text/table.h"
#include "costmodel/text/units_text.h"
#include "costmodel/timeline.h"
#include "costmodel/topology.h"
#include "python/bindings/bind.h"

namespace stagecraft::python {

namespace {

std::string kind_text(DeviceKind kind) {
  switch (kind) {
    case DeviceKind::Processor:
      return "processor";
    case DeviceKind::Gpu:
      return "gpu";
    case DeviceKind::Unknown:
      break;
  }
  return "";
}

std::vector<std::pair<std::int64_t, double>> points(const Curve& curve) {
  std::vector<std::pair<std::int64_t, double>> out;
  out.reserve(curve.points.size());
  for (const CurvePoint& point : curve.points) out.emplace_back(point.bytes.value, point.time.value);
  return out;
}

std::map<int, std::vector<std::pair<std::int64_t, double>>> points(const std::map<int, Curve>& curves) {
  std::map<int, std::vector<std::pair<std::int64_t, double>>> out;
  for (const auto& [ranks, curve] : curves) out[ranks] = points(curve);
  return out;
}

std::size_t ranks(const Plan& plan) { return BoundPlan(plan).ranks().size(); }

std::string repr(const Graph& graph) {
  std::string out = fmt::format("Graph({}: {}, {} of parameters", graph.name, count_text(graph.layers.size(), "layer"),
                                format_bytes(held_parameter_bytes(graph)));
  if (graph.microbatch_samples) out += ", microbatches of " + count_text(*graph.microbatch_samples, "sample");
  if (has_times(graph)) out += fmt::format(", {} per microbatch", format_seconds(compute_time(graph)));
  return out + (distrust_text(graph).empty() ? ")" : ", not trusted)");
}

std::string repr(const Topology& topology) {
  std::vector<std::string> levels;
  for (const Level& level : topology.levels) levels.push_back(fmt::format("{} x {}", level.count, level.name));
  return fmt::format("Topology({}: {} ({}) of {})", topology.name, count_text(device_count(topology), "device"),
                     fmt::join(levels, ", "), topology.device.name.empty() ? "unknown kind" : topology.device.name);
}

std::string repr(const Plan& plan) {
  std::vector<std::size_t> replicas;
  for (const Stage& stage : plan.stages) replicas.push_back(stage.devices.size());
  std::string out =
      fmt::format("Plan({}: {}, replicas {}, {}, {}", plan.model, count_text(plan.stages.size(), "stage"),
                  fmt::join(replicas, "-"), plan.schedule, count_text(plan.microbatches, "microbatch", "microbatches"));
  if (plan.iteration) out += ", predicted step " + format_seconds(*plan.iteration);
  return out + ")";
}

std::string repr(const Measurement& run) {
  std::string out = fmt::format("Measurement({}: {}", run.model, count_text(run.timeline.steps.size(), "step"));
  if (!run.timeline.steps.empty())
    out += ", median " + format_seconds(step_time(run.timeline, warm_up_steps(run.timeline)));
  if (!run.losses.empty()) out += fmt::format(", loss {:.4g} to {:.4g}", run.losses.front(), run.losses.back());
  return out + (run.ended ? ")" : ", not ended)");
}

void bind_shared(nb::module_& module) {
  nb::class_<Timing>(module, "Timing", "Time of one execution on one device.")
      .def_ro("median_s", &Timing::median, "Seconds.")
      .def_ro("spread_s", &Timing::spread, "Median absolute deviation in seconds; None with fewer than 5 samples.")
      .def_ro("count", &Timing::count, "Samples; 0 for a time that was given or estimated.")
      .def("__repr__", [](const Timing& self) {
        return self.spread ? fmt::format("Timing({} +- {}, {} samples)", format_seconds(self.median),
                                         format_seconds(*self.spread), self.count)
                           : fmt::format("Timing({})", format_seconds(self.median));
      });
  nb::class_<Provenance>(module, "Provenance", "Who made a document, when and on what.")
      .def_ro("tool", &Provenance::tool, "Program and version.")
      .def_ro("device", &Provenance::device, "Processor or GPU model.")
      .def_ro("versions", &Provenance::versions, "Versions of libraries.")
      .def_ro("date", &Provenance::date, "ISO 8601, UTC.")
      .def_ro("notes", &Provenance::notes, "Further remarks by name.")
      .def("__repr__", [](const Provenance& self) { return fmt::format("Provenance({}, {})", self.tool, self.date); });
}

void bind_graph(nb::module_& module) {
  nb::class_<Output>(module, "Output", "One output tensor of a layer for one microbatch.")
      .def_ro("bytes", &Output::bytes, "Bytes for the whole microbatch.")
      .def_ro("shape", &Output::shape, "Extents; empty if unknown.")
      .def_ro("dtype", &Output::dtype, "\"float32\", \"int64\", ...; empty if unknown.")
      .def_ro("requires_grad", &Output::requires_grad, "Whether a gradient comes back.")
      .def("__repr__", [](const Output& self) {
        return fmt::format("Output({}[{}], {})", self.dtype.empty() ? "?" : self.dtype, fmt::join(self.shape, ", "),
                           format_bytes(self.bytes));
      });
  nb::class_<Work>(module, "Work", "What a layer computes and moves in one direction for one microbatch.")
      .def_prop_ro(
          "flops", [](const Work& self) { return self.flops; },
          "Floating-point operations; a multiply-add counts as two.")
      .def_ro("moved_bytes", &Work::moved, "Bytes read and written.")
      .def_ro("operators", &Work::operators, "Operators that compute or move something.")
      .def("__repr__", [](const Work& self) {
        return fmt::format("Work({:.4g} flops, {}, {})", self.flops.value, format_bytes(self.moved),
                           count_text(self.operators, "operator"));
      });
  nb::class_<Layer>(module, "Layer", "One unit of computation, with its costs for one microbatch on one device.")
      .def_ro("id", &Layer::id, "Unique in the graph; edges and plans use it.")
      .def_ro("name", &Layer::name, "For display.")
      .def_ro("kind", &Layer::kind, "\"Conv2d\", \"Linear\", ...; \"Input\" for data that is loaded.")
      .def_ro("forward", &Layer::forward, "Time of the forward.")
      .def_ro("backward", &Layer::backward, "Time of the backward.")
      .def_ro("update", &Layer::update, "Time of the optimizer's step; None if not measured.")
      .def_ro("outputs", &Layer::outputs, "Output tensors.")
      .def_prop_ro(
          "activation_bytes", [](const Layer& self) { return activation_bytes(self); }, "Bytes of all outputs.")
      .def_ro("parameter_bytes", &Layer::parameter_bytes, "Bytes of trainable parameters, tied ones included.")
      .def_ro("frozen_bytes", &Layer::frozen_bytes, "Bytes of frozen parameters and buffers.")
      .def_ro("parameters", &Layer::parameters, "Number of trainable parameters; None if unknown.")
      .def_ro("saved_bytes", &Layer::saved_bytes, "Bytes that stay from forward to backward; None if unknown.")
      .def_ro("workspace_bytes", &Layer::workspace_bytes, "Bytes of the largest transient allocation; None if unknown.")
      .def_ro("forward_work", &Layer::forward_work, "Counted work of the forward; None if not counted.")
      .def_ro("backward_work", &Layer::backward_work, "Counted work of the backward; None if not counted.")
      .def("__repr__", [](const Layer& self) {
        return fmt::format("Layer({}: {}, forward {}, backward {}, {} of parameters)", self.id, self.kind,
                           format_seconds(self.forward.median), format_seconds(self.backward.median),
                           format_bytes(self.parameter_bytes));
      });
  nb::class_<Edge>(module, "Edge", "A layer that reads another's output; numbers of Graph.layers.")
      .def_ro("source", &Edge::source)
      .def_ro("destination", &Edge::destination)
      .def_ro("output", &Edge::output, "Which output; None for all together.")
      .def("__repr__", [](const Edge& self) { return fmt::format("Edge({} -> {})", self.source, self.destination); });
  nb::class_<MeasuredDevice>(module, "MeasuredDevice", "The device of a graph's times.")
      .def_ro("name", &MeasuredDevice::name)
      .def_prop_ro(
          "kind", [](const MeasuredDevice& self) { return kind_text(self.kind); },
          "\"processor\", \"gpu\" or, if unknown, \"\".")
      .def_ro("host_processors", &MeasuredDevice::host_processors, "Processors of its host; 0 if unknown.")
      .def("__repr__", [](const MeasuredDevice& self) { return fmt::format("MeasuredDevice({})", self.name); });
  nb::class_<Graph> graph(module, "Graph",
                          "A model's layers with their costs, for one microbatch on one device (stagecraft.graph).");
  graph.def_ro("name", &Graph::name, "The model's name, or its file.")
      .def_ro("options", &Graph::options, "The model's options that are not defaults.")
      .def_ro("microbatch_samples", &Graph::microbatch_samples, "Samples in a microbatch; None if unknown.")
      .def_ro("dtype", &Graph::dtype, "Of the computation; empty if unknown.")
      .def_ro("optimizer", &Graph::optimizer, "Of the update times; empty if none were measured.")
      .def_ro("layers", &Graph::layers, "All layers.")
      .def_ro("edges", &Graph::edges, "Which layer reads which output.")
      .def_ro("iteration", &Graph::iteration, "Time of a whole forward, backward and update; None if not measured.")
      .def_ro("device", &Graph::device, "Of the times.")
      .def_ro("slowdown", &Graph::slowdown, "Factors on compute times while 1, 2, ... ranks share the host.")
      .def_ro("provenance", &Graph::provenance)
      .def_prop_ro(
          "compute_s", [](const Graph& self) { return compute_time(self); },
          "Seconds of all forwards and backwards for one microbatch.")
      .def_prop_ro(
          "parameter_bytes", [](const Graph& self) { return held_parameter_bytes(self); },
          "Bytes of trainable parameters, each tied one once.")
      .def_prop_ro(
          "distrust", [](const Graph& self) { return distrust_text(self); },
          "Why the profile is not trusted; empty if it is.")
      .def(
          "layer",
          [](const Graph& self, const std::string& id) -> const Layer& {
            return self.layers[static_cast<std::size_t>(layer_index(self, id))];
          },
          nb::arg("id"), nb::rv_policy::reference_internal, "The layer of that id. Raises InputError listing the ids.")
      .def("__repr__", [](const Graph& self) { return repr(self); });
  add_document(graph, format::parse_graph, format::graph_json);
  add_html(graph, "graph");
}

void bind_topology(nb::module_& module) {
  nb::class_<Link>(module, "Link", "The link between two devices.")
      .def_ro("bandwidth_bytes_per_s", &Link::bandwidth)
      .def_ro("latency_s", &Link::latency)
      .def_prop_ro(
          "send_receive", [](const Link& self) { return points(self.send_receive); },
          "Measured (bytes, seconds); empty if not measured.")
      .def_prop_ro(
          "all_reduce", [](const Link& self) { return points(self.all_reduce); },
          "Measured (bytes, seconds) by number of ranks.")
      .def_prop_ro("measured", [](const Link& self) { return self.origin == LinkOrigin::Measured; })
      .def_ro("channel", &Link::channel, "Over which it was measured; empty if unknown.")
      .def("__repr__", [](const Link& self) {
        return fmt::format("Link({}/s, {})", format_bytes(Bytes(static_cast<std::int64_t>(self.bandwidth.value))),
                           format_seconds(self.latency));
      });
  nb::class_<Level>(module, "Level", "Groups of the level below (devices, at the innermost level) and their link.")
      .def_ro("name", &Level::name)
      .def_ro("count", &Level::count)
      .def_ro("link", &Level::link)
      .def("__repr__", [](const Level& self) { return fmt::format("Level({} x {})", self.count, self.name); });
  nb::class_<Device>(module, "Device", "One kind of device.")
      .def_ro("name", &Device::name)
      .def_ro("memory_bytes", &Device::memory, "The limit for a plan; None: unlimited.")
      .def_prop_ro(
          "kind", [](const Device& self) { return kind_text(self.kind); },
          "\"processor\", \"gpu\" or, if unknown, \"\".")
      .def_ro("host_processors", &Device::host_processors, "Of each host; 0 if unknown.")
      .def("__repr__", [](const Device& self) { return fmt::format("Device({})", self.name); });
  nb::class_<Topology> topology(module, "Topology", "Devices and the links that join them (stagecraft.topology).");
  topology
      .def_static(
          "of",
          [](const std::vector<int>& devices, const std::vector<double>& bandwidths,
             const std::vector<double>& latencies, std::optional<Bytes> memory, const std::string& name) {
            if (bandwidths.size() > devices.size() || latencies.size() > devices.size())
              throw std::invalid_argument(fmt::format("found {} bandwidths and {} latencies for {} levels",
                                                      bandwidths.size(), latencies.size(), devices.size()));
            Topology out;
            out.name = name;
            out.device.memory = memory;
            for (std::size_t i = 0; i < devices.size(); ++i) {
              Level level;
              level.name = fmt::format("level {}", i + 1);
              level.count = devices[i];
              level.link.bandwidth = BytesPerSecond(i < bandwidths.size() ? bandwidths[i] : 1e9);
              if (i < latencies.size()) level.link.latency = Seconds(latencies[i]);
              out.levels.push_back(level);
            }
            validate(out);
            return out;
          },
          nb::arg("devices"), nb::arg("bandwidths") = std::vector<double>{},
          nb::arg("latencies") = std::vector<double>{}, nb::arg("memory_bytes") = nb::none(),
          nb::arg("name") = "command line",
          "Levels of plain counts, innermost first, as `plan --devices` makes them: Topology.of([8, 2], [25e9, 3e9]) "
          "is "
          "two nodes of eight devices. Bandwidths are bytes per second (1e9 if not given), latencies seconds (0).")
      .def_ro("name", &Topology::name)
      .def_ro("device", &Topology::device, "The kind of all devices.")
      .def_ro("levels", &Topology::levels, "Innermost first.")
      .def_ro("provenance", &Topology::provenance)
      .def_prop_ro("device_count", [](const Topology& self) { return device_count(self); })
      .def_prop_ro(
          "distrust", [](const Topology& self) { return distrust_text(self); },
          "Why the measured links are not trusted; empty if they are.")
      .def("__repr__", [](const Topology& self) { return repr(self); });
  add_document(topology, format::parse_topology, format::topology_json);
  add_html(topology, "topology");
}

void bind_plan(nb::module_& module) {
  nb::class_<Stage>(module, "Stage", "A stage: its layers and devices.")
      .def_ro("layers", &Stage::layers, "Ids in the order of execution.")
      .def_ro("devices", &Stage::devices, "Device numbers, one per replica.")
      .def_prop_ro("replicas", [](const Stage& self) { return self.devices.size(); })
      .def_ro("recompute", &Stage::recompute, "Whether the forward runs again before the backward.")
      .def_ro("recompute_every", &Stage::recompute_every, "Layers that run again together; 0: the whole stage.")
      .def("__repr__", [](const Stage& self) {
        return fmt::format("Stage({} .. {}: {}, devices {})", self.layers.empty() ? "" : self.layers.front(),
                           self.layers.empty() ? "" : self.layers.back(), count_text(self.layers.size(), "layer"),
                           format_ranges(self.devices, ", "));
      });
  nb::class_<Plan> plan(module, "Plan", "Which layers run where, in which order (stagecraft.plan).");
  plan.def_ro("model", &Plan::model, "The graph's name.")
      .def_ro("options", &Plan::options, "The model's options that are not defaults.")
      .def_ro("optimizer", &Plan::optimizer, "That the predictions count on; empty if none was measured.")
      .def_ro("stages", &Plan::stages)
      .def_ro("microbatches", &Plan::microbatches, "Per step.")
      .def_ro("microbatch_samples", &Plan::microbatch_samples, "Samples in a microbatch; None if unknown.")
      .def_prop_ro(
          "step_samples",
          [](const Plan& self) -> std::optional<std::int64_t> {
            if (!self.microbatch_samples) return std::nullopt;
            return *self.microbatch_samples * self.microbatches;
          },
          "Samples in a step, the global batch; None if unknown.")
      .def_ro("schedule", &Plan::schedule)
      .def_ro("chunks", &Plan::chunks, "Stages per device.")
      .def_ro("dtype", &Plan::dtype, "Of the computation; empty if unknown.")
      .def_ro("strategy", &Plan::strategy, "The strategy that made it.")
      .def_ro("iteration_s", &Plan::iteration, "Predicted seconds of a step; None if not predicted.")
      .def_ro("lower_bound_s", &Plan::lower_bound,
              "No plan that the strategy considers has a shorter predicted step; None if unknown.")
      .def_ro("steady_state_s", &Plan::steady_state,
              "Seconds of the slowest stage per microbatch, as the strategy estimates it; None if it does not.")
      .def_ro("gradient_bucket_bytes", &Plan::gradient_bucket_bytes, "None: one bucket per stage.")
      .def_ro("provenance", &Plan::provenance)
      .def_prop_ro("ranks", ranks, "Processes of a run.")
      .def("__repr__", [](const Plan& self) { return repr(self); });
  add_document(plan, format::parse_plan, format::plan_json);
  add_html(plan, "plan");
}

void bind_measurement(nb::module_& module) {
  nb::class_<RankMemory>(module, "RankMemory", "Peak memory of one rank.")
      .def_ro("rank", &RankMemory::rank)
      .def_ro("total_bytes", &RankMemory::total)
      .def_prop_ro(
          "parts_bytes",
          [](const RankMemory& self) {
            std::map<std::string, Bytes> out;
            for (const auto& [part, bytes] : self.parts) out[to_string(part)] = bytes;
            return out;
          },
          "By part; of a prediction they add up to the total.")
      .def("__repr__", [](const RankMemory& self) {
        return fmt::format("RankMemory(rank {}: {})", self.rank, format_bytes(self.total));
      });
  nb::class_<StepTime>(module, "StepTime", "Start and end of a step, in seconds from the start of the timeline.")
      .def_ro("step", &StepTime::step)
      .def_ro("start_s", &StepTime::start)
      .def_ro("end_s", &StepTime::end)
      .def("__repr__", [](const StepTime& self) {
        return fmt::format("StepTime({}: {})", self.step, format_seconds(self.end - self.start));
      });
  nb::class_<Span>(module, "Span", "Work or waiting on one rank, in seconds from the start of the timeline.")
      .def_ro("rank", &Span::rank)
      .def_ro("step", &Span::step)
      .def_prop_ro(
          "kind", [](const Span& self) { return std::string(to_string(self.action.kind)); },
          "\"forward\", \"backward\", \"receive-activation\", ...")
      .def_prop_ro("stage", [](const Span& self) { return self.action.stage; })
      .def_prop_ro(
          "microbatch",
          [](const Span& self) -> std::optional<int> {
            if (self.action.microbatch < 0) return std::nullopt;
            return self.action.microbatch;
          },
          "None for a reduce or an update.")
      .def_ro("start_s", &Span::start)
      .def_ro("end_s", &Span::end)
      .def("__repr__", [](const Span& self) {
        return fmt::format("Span(rank {}, {}, {} to {})", self.rank, to_string(self.action.kind),
                           format_seconds(self.start), format_seconds(self.end));
      });
  nb::class_<Timeline>(module, "Timeline", "What happened when, predicted or measured.")
      .def_ro("ranks", &Timeline::ranks)
      .def_ro("stage_of_rank", &Timeline::stage_of_rank)
      .def_ro("steps", &Timeline::steps)
      .def_ro("spans", &Timeline::spans)
      .def_ro("memory", &Timeline::memory, "Of each rank.")
      .def("__repr__", [](const Timeline& self) {
        return fmt::format("Timeline({}, {}, {})", count_text(self.ranks, "rank"),
                           count_text(self.steps.size(), "step"), count_text(self.spans.size(), "span"));
      });
  nb::class_<Measurement> measurement(module, "Measurement", "What a run measured (stagecraft.timeline).");
  measurement.def_ro("model", &Measurement::model)
      .def_ro("schedule", &Measurement::schedule)
      .def_ro("microbatches", &Measurement::microbatches, "Per step.")
      .def_ro("microbatch_samples", &Measurement::microbatch_samples, "Samples in a microbatch; None if unknown.")
      .def_ro("losses", &Measurement::losses, "Mean loss of each step; NaN where it was not finite.")
      .def_ro("ended", &Measurement::ended, "False if written before the end of the run.")
      .def_ro("timeline", &Measurement::timeline)
      .def_ro("channel", &Measurement::channel, "Between the ranks; empty if unknown.")
      .def_ro("provenance", &Measurement::provenance)
      .def(
          "step_s", [](const Measurement& self, std::size_t skip) { return step_time(self.timeline, skip); },
          nb::arg("skip") = 0, "Median seconds of the steps after the first `skip`.")
      .def("__repr__", [](const Measurement& self) { return repr(self); });
  add_document(measurement, format::parse_measurement, format::measurement_json);
  add_html(measurement, "measurement");
}

}  // namespace

void bind_inputs(nb::module_& module) {
  bind_shared(module);
  bind_graph(module);
  bind_topology(module);
  bind_plan(module);
  bind_measurement(module);
  nb::class_<Calibration> calibration(module, "Calibration",
                                      "Factors from measured runs, applied to predictions (stagecraft.calibration).");
  calibration.def("__repr__",
                  [](const Calibration& self) { return fmt::format("Calibration({})", calibration_text(self)); });
  add_document(calibration, format::parse_calibration, format::calibration_json);
}

}  // namespace stagecraft::python
