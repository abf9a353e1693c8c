#include "costmodel/format/graph_json.h"

#include <map>
#include <set>

#include "costmodel/format/files/files.h"
#include "costmodel/format/shared_notations.h"
#include "costmodel/index.h"
#include "costmodel/schedule.h"

namespace stagecraft::format {
namespace {

Notation<Timing> timing() {
  return object<Timing>(
             {
                 required("median_s", &Timing::median, not_negative(), "Median, seconds"),
                 optional("spread_s", &Timing::spread, not_negative(),
                          "Median absolute deviation; absent with fewer than 5 samples, seconds"),
                 required("count", &Timing::count, integer(0, kMany),
                          "Number of samples; 0: given or estimated, not measured here."),
                 optional("log_spread", &Timing::log_spread, not_negative(),
                          "Of an estimated time: standard deviation of its logarithm, common to all times of the "
                          "graph. Since version 7."),
             },
             "Time of one execution on one device.")
      .named("timing");
}

Notation<Output> output() {
  return object<Output>(
             {
                 required("activation_bytes", &Output::bytes, bytes(), "Tensor of the whole microbatch, bytes"),
                 optional("shape", &Output::shape, list<std::int64_t>(integer(0, kMany, "Extent of one axis.")),
                          "Extent of each axis, usually with the batch first.")
                     .only_if([](const Output& of) { return !of.shape.empty() || !of.dtype.empty(); }),
                 optional("dtype", &Output::dtype, text(),
                          "Element type, such as float32; absent if the source does not give it."),
                 optional("requires_grad", &Output::requires_grad, boolean(),
                          "False if no gradient comes back. Absent: true."),
                 optional("saved", &Output::saved, boolean(),
                          "Whether a layer keeps it for the backward. Absent: unknown."),
             },
             "One output tensor of a layer for one microbatch.")
      .named("output");
}

Notation<LayerShare> layer_share() {
  return object<LayerShare>(
             {
                 required("busy_ns", &LayerShare::busy_ns, integer(0, kMany), "Union of its device work, nanoseconds"),
                 required("share_ns", &LayerShare::share_ns, integer(0, kMany),
                          "Its part of the steps, including idle gaps before its work; with the residuals in quality "
                          "the layers' shares add up to watched_ns exactly, nanoseconds"),
                 required("activities", &LayerShare::activities, integer(0, kMany),
                          "Kernels, copies and memsets; time intervals on a processor."),
                 optional("isolated", &LayerShare::isolated, timing(), "One execution of the layer alone, repeated."),
             },
             "A layer's part of the watched steps in one direction, summed over all steps.")
      .named("share");
}

Notation<ProfileQuality> quality() {
  using Q = ProfileQuality;
  const auto count = integer(0, kMany);
  return object<Q>(
             {
                 required("clock", &Q::clock, text(), "host, cupti or events."),
                 required("trusted", &Q::trusted, boolean(), "Whether the measurement is trusted."),
                 required("reasons", &Q::reasons, list(text("A reason.")), "Reasons not to trust it."),
                 required("watched", &Q::watched, timing(), "A watched step; iteration is an unwatched one."),
                 required("debiased", &Q::debiased, boolean(),
                          "Whether idle gaps were scaled so that a watched step lasts as long as an unwatched one."),
                 required("steps", &Q::steps, count, "Steps that were watched."),
                 required("watched_ns", &Q::watched_ns, count,
                          "Length of the watched steps: the layers' shares, data_wait_ns and unattributed_ns "
                          "together, nanoseconds"),
                 required("data_wait_ns", &Q::data_wait_ns, count, "Waiting for data, nanoseconds"),
                 required("unattributed_ns", &Q::unattributed_ns, count,
                          "Unattributed work, gaps before it and the end of each step, nanoseconds"),
                 required("work", &Q::work, count, "Pieces of device work."),
                 required("work_attributed", &Q::work_attributed, count,
                          "Pieces of device work that were attributed to a layer."),
                 required("work_ns", &Q::work_ns, count, "Time of device work, nanoseconds"),
                 required("work_attributed_ns", &Q::work_attributed_ns, count,
                          "Time of device work that was attributed to a layer, nanoseconds"),
                 required("dropped", &Q::dropped, count, "Records that were lost."),
                 required("bad_timestamps", &Q::bad_timestamps, count,
                          "Work without time stamps, or that ends before it begins or begins before its launch."),
                 required("disagreements", &Q::disagreements, count,
                          "Work that two ways of attribution assign to different layers."),
                 required("host_wait_ns", &Q::host_wait_ns, count,
                          "Device idle because the host had not launched yet, nanoseconds"),
                 required("kernel_wait_ns", &Q::kernel_wait_ns, count,
                          "Device idle for less than 2 us between work that was already launched, nanoseconds"),
                 required("summed_peak_bytes", &Q::summed_peak_bytes, bytes(),
                          "Parameters, gradients, optimizer state, saved activations and the largest workspace, bytes"),
                 required("allocator_peak_bytes", &Q::allocator_peak_bytes, bytes(),
                          "The peak as the allocator counted it, bytes"),
             },
             "How far a measured graph can be trusted.")
      .named("quality");
}

Notation<Estimate> estimate() {
  return object<Estimate>({
      optional("from_device", &Estimate::from, text(),
               "Device of the measured times that the estimate started from; absent: it started from operations and "
               "bytes alone."),
      optional("from_math", &Estimate::from_math, text(), "Math of the measured times: float32, tf32, bfloat16, ..."),
      required("math", &Estimate::math, text(), "Math of the estimated times."),
      required("peak_flops_per_s", &Estimate::peak, not_negative(),
               "Peak rate of the device with that math, floating-point operations per second"),
      required("memory_bandwidth_bytes_per_s", &Estimate::bandwidth, not_negative(),
               "Peak bandwidth of the device's memory, bytes per second"),
      required("operator_s", &Estimate::time_per_operator, not_negative(), "Time to start an operator, seconds"),
  });
}

Notation<BackwardParts> backward_parts() {
  return object<BackwardParts>(
             {
                 required("input_gradient", &BackwardParts::inputs, timing(),
                          "Gradient of the layer's inputs; 0 if they need none."),
                 required("weight_gradient", &BackwardParts::weights, timing(),
                          "Gradient of the layer's weights; 0 without trainable parameters."),
                 optional("separable", &BackwardParts::separable, boolean(),
                          "False if the executor cannot take the parts apart: all is in input_gradient, and stages "
                          "with the layer do not split their backward. Absent: true."),
             },
             "The two parts of the backward where a schedule splits it; together they may take longer than the whole.")
      .named("backward_parts");
}

Notation<Work> work() {
  return object<Work>(
             {
                 required("flops", &Work::flops, integer(0, kMany),
                          "Floating-point operations; a multiply-add counts as two."),
                 required("moved_bytes", &Work::moved, bytes(),
                          "Each input and each result of an operator once, bytes"),
                 required("operators", &Work::operators, integer(0, kMany),
                          "Operators that compute or move something."),
             },
             "What operators compute and move for one microbatch, whatever the device.")
      .named("work");
}

Notation<TiedParameter> tied_parameter() {
  return object<TiedParameter>(
             {
                 required("name", &TiedParameter::name, text(), "Name shared by all holders."),
                 required("parameter_bytes", &TiedParameter::bytes, bytes(), "The parameter, bytes"),
             },
             "A parameter that several layers have under one name.")
      .named("tied");
}

Notation<Layer> layer() {
  const auto tensors =
      list(object(state_tensor_fields(), "A tensor that a layer keeps from step to step.").named("stateTensor"));
  return object<Layer>(
             {
                 required("id", &Layer::id, text().with("minLength", 1),
                          "Unique in the document; edges and plans use it."),
                 required("name", &Layer::name, text(), "For display; any text."),
                 required("kind", &Layer::kind, text(),
                          "Conv2d, Linear, ...; Input for data that is loaded, not computed."),
                 required("forward", &Layer::forward, timing()),
                 required("backward", &Layer::backward, timing()),
                 optional("backward_parts", &Layer::backward_parts, backward_parts()),
                 optional("accumulation", &Layer::accumulation, timing(),
                          "Part of the backward that adds to the gradients of earlier microbatches; the first backward "
                          "of a step creates them instead. Since version 10."),
                 optional("update", &Layer::update, timing(), "The optimizer's step on this layer's parameters."),
                 optional("loading", &Layer::loading, timing(),
                          "Of an input on a GPU: the host's time to load a microbatch, while the device computes; the "
                          "forward is the upload. Since version 9."),
                 required("outputs", &Layer::outputs, list(output()), "The layer's outputs."),
                 required("parameter_bytes", &Layer::parameter_bytes, bytes(),
                          "Trainable parameters, tied ones included, bytes"),
                 optional("frozen_bytes", &Layer::frozen_bytes, bytes(),
                          "Frozen parameters and buffers, which have no gradients and no optimizer state, bytes; "
                          "absent: none. Since version 8."),
                 optional("written_bytes", &Layer::written_bytes, bytes(),
                          "Of frozen_bytes, what a forward writes: a stage that recomputes keeps a copy for each "
                          "microbatch in flight, bytes; absent: none. Since version 11."),
                 optional("replicable", &Layer::replicable, boolean(),
                          "False: a forward writes a buffer in a way that replicas cannot replay, so a stage that "
                          "trains the layer has one replica. Absent: true. Since version 11."),
                 optional("parameters", &Layer::parameters, integer(0, kMany),
                          "Number of trainable values. Absent: parameter_bytes / 4."),
                 optional("tied", &Layer::tied, list(tied_parameter()), "Parameters shared with other layers."),
                 optional("saved_bytes", &Layer::saved_bytes, bytes(),
                          "Memory that stays allocated from forward to backward, bytes"),
                 optional("workspace_bytes", &Layer::workspace_bytes, bytes(),
                          "Largest transient allocation on top of it, bytes"),
                 optional("gradient_bytes", &Layer::gradient_bytes, bytes(),
                          "Gradients of the parameters, each tensor once, bytes"),
                 optional("saved_for_backward_bytes", &Layer::saved_for_backward_bytes, bytes(),
                          "Tensors that autograd keeps from forward to backward, without parameters; each storage "
                          "counts for the first layer that keeps it, bytes"),
                 optional("forward_work", &Layer::forward_work, work(),
                          "What the forward's operators compute and move. Since version 6."),
                 optional("backward_work", &Layer::backward_work, work(),
                          "What the backward's operators compute and move, in a microbatch that adds to existing "
                          "gradients. Since version 6."),
                 optional("forward_share", &Layer::forward_share, layer_share(),
                          "The forward's part of the watched steps."),
                 optional("backward_share", &Layer::backward_share, layer_share(),
                          "The backward's part of the watched steps."),
                 optional("update_share", &Layer::update_share, layer_share(),
                          "The update's part of the watched steps."),
                 optional("stage", &Layer::stage, integer(0, 1 << 20),
                          "Stage in a graph that was imported with stages."),
                 optional("parameter_tensors", &Layer::parameter_tensors, tensors,
                          "Its trainable parameters, tied ones included; absent: the source of the graph does not name "
                          "them. Since version 12."),
                 optional("exchanged_buffers", &Layer::exchanged_buffers, tensors,
                          "Buffers that a forward in training writes, and that replicas exchange; absent: none. Since "
                          "version 12."),
             },
             "One unit of computation, with its costs alone for one microbatch on one device.")
      .named("layer");
}

/// An edge as documents have it: by ids.
struct NamedEdge {
  std::string source;
  std::string destination;
  std::optional<int> output;
};

Field<Graph> edges() {
  const auto edge = object<NamedEdge>(
                        {
                            required("source", &NamedEdge::source, text(), "Id of a layer."),
                            required("destination", &NamedEdge::destination, text(), "Id of a layer."),
                            optional("output", &NamedEdge::output, integer(0, 1 << 20),
                                     "Index of the source's output; absent: all its outputs together."),
                        },
                        "The destination reads an output of the source.")
                        .named("edge");
  return derived<Graph, std::vector<NamedEdge>>(
      "edges",
      [](const Graph& graph) {
        std::vector<NamedEdge> out;
        for (const Edge& each : graph.edges) {
          out.push_back(
              {graph.layers[to_index(each.source)].id, graph.layers[to_index(each.destination)].id, each.output});
        }
        return out;
      },
      [](const Cursor& at, Graph& graph, const std::vector<NamedEdge>& named) {
        std::map<std::string, int> index;
        for (std::size_t i = 0; i < graph.layers.size(); ++i) index.emplace(graph.layers[i].id, to_int(i));
        for (std::size_t i = 0; i < named.size(); ++i) {
          const auto layer = [&](const char* key, const std::string& id) {
            const auto it = index.find(id);
            if (it == index.end()) at.at(i).member(key).fail("layer \"" + id + "\" does not exist, ids are in /layers");
            return it->second;
          };
          const int source = layer("source", named[i].source);
          graph.edges.push_back({source, layer("destination", named[i].destination), named[i].output});
        }
      },
      list(edge),
      "Edges from outputs to the layers that read them; the in-edges of a layer, in this order, are its arguments.");
}

void refuse_equal_ids(const Cursor& at, Graph& graph) {
  std::set<std::string> ids;
  for (std::size_t i = 0; i < graph.layers.size(); ++i) {
    const std::string& id = graph.layers[i].id;
    if (!ids.insert(id).second) at.at(i).fail("id \"" + id + "\" appears twice");
  }
}

constexpr Number kFactor{.low = 1, .wanted = "a factor of at least 1", .help = "Factor."};

Notation<MeasuredDevice> measured_device() {
  return object<MeasuredDevice>({
      optional("name", &MeasuredDevice::name, text(), "Model."),
      optional("kind", &MeasuredDevice::kind, device_kind(), "Kind of device."),
      optional("host_processors", &MeasuredDevice::host_processors, processors(),
               "Processors of its host; slowdown is valid on hosts with the same number."),
  });
}

Notation<InFlightSlowdown> in_flight_slowdown() {
  return object<InFlightSlowdown>({
      required("microbatches", &InFlightSlowdown::microbatches, integer(2, kMostMicrobatches),
               "Microbatches in flight."),
      required("factor", &InFlightSlowdown::factor, kFactor),
  });
}

const Document<Graph>& graph_document() {
  static const Document<Graph> document(
      {.name = "graph",
       .version = 13,
       .title = "Graph",
       .help =
           "A directed acyclic graph of layers, with the costs of one microbatch on one device. Together its layers "
           "have at most 2^60 bytes.",
       .changes =
           "Version 2 added quality, shares, gradient_bytes and saved_for_backward_bytes, version 3 device, "
           "version 4 allow_tf32, version 5 backward_parts and conditions, version 6 saved, forward_work and "
           "backward_work, version 7 estimate and log_spread, version 8 frozen_bytes, version 9 loading and "
           "library_bytes, version 10 accumulation and in_flight_slowdown, version 11 written_bytes, replicable "
           "and whole_batch_loss, version 12 parameter_tensors and exchanged_buffers, version 13 parameter_dtype, "
           "gradient_dtype and moment_dtype."},
      fields<Graph>(
          {{
               required("name", &Graph::name, text(), "Name of the model."),
               optional("options", &Graph::options, text_map(), "The model's options that are not defaults, by name."),
               optional("microbatch_samples", &Graph::microbatch_samples, integer(1, kMany),
                        "Samples in one microbatch; absent in imported profiles."),
               optional("dtype", &Graph::dtype, text(),
                        "Data type of the computation, such as float32; absent if unknown."),
           },
           embedded(&Graph::types, state_types_fields()),
           {
               optional(
                   "allow_tf32", &Graph::allow_tf32, boolean(),
                   "Whether a GPU might round the inputs of float32 operations to TF32; absent if unknown, or not on a "
                   "GPU."),
               optional("optimizer", &Graph::optimizer, text(),
                        "Optimizer of the update times; absent if none were measured."),
               optional("optimizer_state_values", &Graph::optimizer_state_values, integer(0, 16),
                        "Values the optimizer keeps for each parameter in moment_dtype: SGD 0, momentum 1, Adam 2; not "
                        "the master "
                        "values. Absent: 0."),
               optional(
                   "whole_batch_loss", &Graph::whole_batch_loss, boolean(),
                   "True: the loss of a batch does not follow from those of its microbatches, so an update takes one "
                   "microbatch. Absent: false. Since version 11."),
               optional(
                   "library_bytes", &Graph::library_bytes, bytes(),
                   "Device memory that libraries keep in each process, such as cuBLAS's workspaces, bytes; absent: "
                   "none, or not measured. Since version 9."),
               optional("threads", &Graph::threads, integer(0, 1 << 20),
                        "Intra-op threads while measuring; absent or 0: unknown."),
               optional("iteration", &Graph::iteration, timing(),
                        "The whole forward, backward and update, measured without the profiler."),
               optional("device", &Graph::device, measured_device(),
                        "The profiled device, or that of the estimate; absent if unknown."),
               optional("slowdown", &Graph::slowdown, list<double>(kFactor),
                        "Entry k-1 is the factor on compute times while k ranks compute at once on the host of device; "
                        "absent: hosts are not shared."),
               optional(
                   "in_flight_slowdown", &Graph::in_flight_slowdown, in_flight_slowdown(),
                   "Forwards and backwards take factor times as long while a rank holds the activations of so many "
                   "microbatches of the whole model; absent: not measured. Since version 10."),
               optional("quality", &Graph::quality, quality()),
               optional(
                   "estimate", &Graph::estimate, estimate(),
                   "How the times were estimated for the device; absent if they were measured on it or given. Since "
                   "version 7."),
               required("layers", &Graph::layers, list(layer()).with("minItems", 1), "The layers, in any order.")
                   .then(refuse_equal_ids),
               edges(),
               conditions_field(&Graph::conditions),
               provenance_field(&Graph::provenance),
           }}),
      refuse_invalid<Graph>);
  return document;
}

}  // namespace

Graph parse_graph(const std::string& text, const std::string& file) { return graph_document().parse(text, file); }
Graph read_graph(const std::string& path) { return parse_graph(read_text(path), path); }
std::string graph_json(const Graph& graph) { return graph_document().text(graph); }
DocumentSchema graph_schema() { return graph_document().schema(); }

}  // namespace stagecraft::format
