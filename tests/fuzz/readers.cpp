#include "tests/fuzz/readers.h"

#include <optional>
#include <stdexcept>

#include "costmodel/errors.h"
#include "costmodel/format/checkpoint_manifest.h"
#include "costmodel/format/files/files.h"
#include "costmodel/format/graph_json.h"
#include "costmodel/format/plan_json.h"
#include "costmodel/format/prediction_json.h"
#include "costmodel/format/results/accuracy_json.h"
#include "costmodel/format/results/plan_list_json.h"
#include "costmodel/format/results/steps_json.h"
#include "costmodel/format/safetensors_header.h"
#include "costmodel/format/timeline_json.h"
#include "costmodel/format/topology_json.h"
#include "costmodel/interchange/convert/description.h"
#include "costmodel/interchange/deepspeed_parts.h"
#include "costmodel/interchange/megatron_layout.h"
#include "costmodel/interchange/nccl_tests.h"
#include "costmodel/interchange/nccl_topology.h"
#include "costmodel/interchange/pipedream.h"
#include "costmodel/interchange/pipedream_conf.h"
#include "costmodel/interchange/problems/dnn_partitioning.h"
#include "costmodel/interchange/problems/piper.h"
#include "costmodel/interchange/rank_file.h"
#include "costmodel/interchange/torch_pipelining.h"
#include "costmodel/project/project.h"
#include "tests/costmodel/documents.h"
#include "tests/support/files/nccl_tests_text.h"
#include "tests/support/files/planner_problems.h"

namespace stagecraft::testing {
namespace {

void demand(bool holds, const char* what) {
  if (!holds) throw std::logic_error(what);
}

template <class Parse>
auto parsed(Parse parse, const std::string& text) -> std::optional<decltype(parse(text, text))> {
  try {
    return parse(text, "file");
  } catch (const FormatError&) { return std::nullopt; }
}

/// Compares only texts, so that values need no ==.
template <class Parse, class Write>
auto json_check(Parse parse, Write write) {
  return [parse, write](const std::string& text) {
    const auto value = parsed(parse, text);
    if (!value) return false;
    const std::string written = write(*value);
    const auto again = parsed(parse, written);
    demand(again.has_value(), "the reader refuses what the writer made of a value that it took");
    demand(write(*again) == written, "a value changes when written and read again");
    return true;
  };
}

bool check_profile(const std::string& text) {
  const std::optional<Graph> graph = parsed(interchange::parse_pipedream, text);
  if (!graph) return false;
  validate(*graph);
  const std::optional<Graph> again = parsed(format::parse_graph, format::graph_json(*graph));
  demand(again.has_value(), "an imported graph is refused as a document");
  demand(*again == *graph, "an imported graph changes when written and read again");
  demand(interchange::pipedream_text(*again) == text, "a profile does not come back byte for byte");
  return true;
}

bool check_topology(const Topology& topology) {
  validate(topology);
  const std::optional<Topology> again = parsed(format::parse_topology, format::topology_json(topology));
  demand(again.has_value(), "an imported topology is refused as a document");
  demand(*again == topology, "an imported topology changes when written and read again");
  return true;
}

bool check_nccl_test(const std::string& text) {
  const std::optional<std::vector<interchange::NcclTest>> tests = parsed(interchange::parse_nccl_tests, text);
  if (!tests) return false;
  try {
    return check_topology(interchange::measured_topology(*tests));
  } catch (const std::invalid_argument&) { return false; }
}

bool check_nccl_topology(const std::string& text) {
  const std::optional<Topology> topology = parsed(interchange::parse_nccl_topology, text);
  return topology && check_topology(*topology);
}

/// Also partitions a graph with as many layers as `parts` has, unless there are too many.
bool check_parts(const std::string& text) {
  const bool taken = json_check(interchange::parse_deepspeed_parts, interchange::deepspeed_parts_json)(text);
  if (!taken) return false;
  const interchange::DeepspeedParts parts = *parsed(interchange::parse_deepspeed_parts, text);
  if (parts.parts.back() > 1000) return true;
  Graph graph;
  for (int i = 0; i < parts.parts.back(); ++i) {
    graph.layers.emplace_back().id =
        parts.layers.empty() ? std::to_string(i) : parts.layers[static_cast<std::size_t>(i)];
  }
  const Partition partition = interchange::deepspeed_partition(parts, graph);
  demand(partition.replicas.size() + 1 == parts.parts.size(), "bounds give another number of stages");
  return true;
}

/// A graph of an input survives as a document, unless the input has more than a graph can hold.
template <class Input, class Convert>
bool check_graph_of(const std::optional<Input>& input, Convert convert) {
  if (!input) return false;
  for (const interchange::Units units : {interchange::Units::Published, interchange::Units::Fixed}) {
    Graph graph;
    try {
      graph = convert(*input, units);
      validate(graph);
    } catch (const std::invalid_argument&) { continue; }
    const std::optional<Graph> again = parsed(format::parse_graph, format::graph_json(graph));
    demand(again.has_value(), "an imported graph is refused as a document");
    demand(*again == graph, "an imported graph changes when written and read again");
  }
  return true;
}

bool check_dnn_partitioning(const std::string& text) {
  return check_graph_of(parsed(interchange::parse_dnn_partitioning, text), interchange::dnn_partitioning_graph);
}

bool check_piper(const std::string& text) {
  return check_graph_of(parsed(interchange::parse_piper, text), interchange::piper_graph);
}

bool check_conf(const std::string& text) {
  if (!json_check(interchange::parse_pipedream_conf, interchange::pipedream_conf_text)(text)) return false;
  const interchange::PipedreamConf conf = *parsed(interchange::parse_pipedream_conf, text);
  Graph graph;
  for (std::size_t m = 0; m + 1 < conf.module_to_stage.size(); ++m) {
    Layer& layer = graph.layers.emplace_back();
    layer.id = std::to_string(m);
    layer.stage = static_cast<int>(m);
  }
  const Partition partition = interchange::pipedream_conf_partition(conf, graph);
  demand(partition.replicas.size() == conf.ranks.size(), "a configuration gives another number of stages");
  return true;
}

bool check_layout(const std::string& text) {
  const auto stages = parsed(interchange::parse_megatron_layout, text);
  if (!stages) return false;
  demand(parsed(interchange::parse_megatron_layout, interchange::megatron_layout_text(*stages)) == stages,
         "a layout changes when written and read");
  return true;
}

bool check_host_list(const std::string& text) {
  const auto hosts = parsed(interchange::parse_host_list, text);
  if (!hosts) return false;
  demand(!hosts->empty(), "a list without hosts is accepted");
  std::string written;
  for (const interchange::HostSlots& host : *hosts) {
    demand(host.slots >= 1, "a host without slots is accepted");
    written += host.name + " slots=" + std::to_string(host.slots) + "\n";
  }
  demand(parsed(interchange::parse_host_list, written) == hosts, "a host list changes when written and read");
  return true;
}

bool check_shard_index(const std::string& text) {
  const auto files = parsed(format::parse_shard_index, text);
  if (!files) return false;
  demand(!files->empty(), "an index without files is accepted");
  for (const std::string& file : *files) demand(file.find('/') == std::string::npos, "a file elsewhere is accepted");
  return true;
}

bool check_actions(const std::string& text) {
  const auto lists = parsed(interchange::parse_actions_csv, text);
  if (!lists) return false;
  const auto again = parsed(interchange::parse_actions_csv, interchange::actions_csv(*lists));
  demand(again.has_value(), "the reader refuses the writer's lists");
  demand(*again == *lists, "lists change when written and read again");
  try {
    validate(interchange::plan_of_lists(*lists));
  } catch (const std::invalid_argument&) {}
  return true;
}

bool check_description(const std::string& text) {
  try {
    const interchange::Description description = interchange::parse_description(text);
    demand(interchange::parse_description(interchange::description_text(description)) == description,
           "a description changes when written and read again");
    return true;
  } catch (const std::invalid_argument&) { return false; }
}

constexpr const char* kActions =
    "0F0,0SEND_F0,,0F1,0SEND_F1,0RECV_B0,0I0,0RECV_B1,0B1,0W0,0REDUCE_GRAD\r\n"
    "1UNSHARD,1RECV_F0,1F0,1B0,1SEND_B0,1RECV_F1,(1F1;1B1)OVERLAP_F_B,1SEND_B1\r\n";

constexpr Bytes kSafetensorsData(12);

format::SafetensorsHeader safetensors_header() {
  return {{{"format", "pt"}},
          {{"a", {"F32", {2}, 0_B, 8_B}},
           {"b", {"BF16", {}, 8_B, 10_B}},
           {"c", {"U8", {1, 2}, 10_B, 12_B}},
           {"d", {"BOOL", {0, 3}, 12_B, 12_B}}}};
}

Timeline timeline() {
  Timeline out;
  out.ranks = 1;
  out.stage_of_rank = {0};
  out.steps = {{0, 0_s, 2_s}};
  out.spans = {{0, 0, {ActionKind::Forward, 0, 0, -1}, 0_s, 1_s}, {0, 0, {ActionKind::Update, 0, -1, -1}, 1_s, 2_s}};
  out.memory = {{0, 12_B, {{MemoryPart::Parameters, 12_B}}}};
  return out;
}

std::string prediction_document() {
  Prediction prediction;
  prediction.iteration = 2_s;
  prediction.samples_per_s = 4;
  prediction.bubble = 0.25;
  prediction.stages.emplace_back().forward = 1_s;
  prediction.timeline = timeline();
  return format::prediction_json(prediction);
}

std::string measurement_document() {
  Measurement measurement;
  measurement.model = "mlp";
  measurement.schedule = "1f1b";
  measurement.microbatch_samples = 8;
  measurement.losses = {2.5};
  measurement.timeline = timeline();
  measurement.provenance = full_provenance();
  return format::measurement_json(measurement);
}

constexpr const char* kProfile =
    "node1 -- Input0 -- forward_compute_time=0.000, backward_compute_time=0.000, activation_size=0.0, "
    "parameter_size=0.000\n"
    "node2 -- LSTM(8, 8) -- forward_compute_time=3.190, backward_compute_time=5.348, activation_size=[64.0; 32.0; 32], "
    "parameter_size=512.000 -- stage_id=0\n"
    "node3 -- Add -- forward_compute_time=0.5, backward_compute_time=1e-2, activation_size=64.000, "
    "parameter_size=0.000 -- stage_id=1\n"
    "\tnode1 -- node2\n"
    "\tnode2 -- node3\n";

constexpr const char* kConf =
    "{\"module_to_stage_map\": [0, 1, 1, 2, 2],\n"
    " \"stage_to_rank_map\": {\"0\": [0, 3], \"1\": [1], \"2\": [2]},\n"
    " \"stage_to_depth_map\": {\"0\": 2, \"1\": 1, \"2\": 0}}\n";

constexpr const char* kProject =
    "model.name = 'gpt'\nmodel.options = {layers = 4, \"width\" = \"256\", rate = 0.5, causal = true}\n"
    "[cluster]\ntopology = \"example:dgx-h100\"\nestimate = \"H100-SXM\"\n"
    "[plan]\nglobal_batch = 0x40 # samples\nreplicas = [2, 1]\nmemory_limit = '16GiB'\n"
    "[training]\nlearning_rate = 1e-2\nbetas = [0.9, 1]\n[links]\noptions = [\"--a\\u00e9\", \"b\"]\n";

constexpr const char* kNcclDump =
    "<system version=\"1\">\n"
    "  <cpu host_hash=\"0x1\" numaid=\"0\">\n"
    "    <pci busid=\"0000:05:00.0\" class=\"0x030200\" link_speed=\"16.0 GT/s PCIe\" link_width=\"16\">\n"
    "      <gpu dev=\"0\" sm=\"80\" rank=\"0\" gdr=\"1\">\n"
    "        <nvlink target=\"0000:06:00.0\" count=\"4\" tclass=\"0x030200\"/>\n"
    "      </gpu>\n"
    "    </pci>\n"
    "    <pci busid=\"0000:06:00.0\" class=\"0x030200\" link_speed=\"16.0 GT/s PCIe\" link_width=\"16\">\n"
    "      <gpu dev=\"1\" sm=\"80\" rank=\"1\" gdr=\"1\"/>\n"
    "    </pci>\n"
    "    <nic>\n"
    "      <net name=\"eth0\" dev=\"0\" speed=\"100000\" latency=\"20.0\"/>\n"
    "    </nic>\n"
    "  </cpu>\n"
    "</system>\n";

std::string with_crlf(const std::string& text) {
  std::string out;
  for (const char c : text) out += c == '\n' ? "\r\n" : std::string(1, c);
  return out;
}

}  // namespace

const std::vector<FuzzedReader>& fuzzed_readers() {
  static const std::vector<FuzzedReader> table{
      {"actions", {kActions}, check_actions},
      {"checkpoint",
       {format::checkpoint_json(full_checkpoint())},
       json_check(format::parse_checkpoint, format::checkpoint_json)},
      {"comparison",
       {format::comparison_json(full_comparison())},
       json_check(format::parse_comparison, format::comparison_json)},
      {"host_list", {"# two machines\nred slots=2\nblue\n", "10.0.0.1 slots=8\n"}, check_host_list},
      {"description",
       {"Conv2d(3, 64, kernel_size=(7, 7), eps=1e-05, bias=False, padding_mode='zeros')",
        "A(  (rnn): LSTM(8, 4)  (attn): B(    (q): Linear(in_features=4)    (d): ReLU(inplace)  ))"},
       check_description},
      {"graph", {format::graph_json(full_graph())}, json_check(format::parse_graph, format::graph_json)},
      {"topology", {format::topology_json(full_topology())}, json_check(format::parse_topology, format::topology_json)},
      {"deepspeed_parts",
       {"{\"partition_method\": \"uniform\", \"parts\": [0, 2, 3], \"layers\": [\"a\", \"b\", \"c\"]}", "[0, 19, 22]"},
       check_parts},
      {"dnn_partitioning", {kDnnPartitioning}, check_dnn_partitioning},
      {"megatron_layout", {"Et*3|(tt|)*29,m|L", "E(t*2|t)*3,ttL\n"}, check_layout},
      {"pipedream_conf", {kConf}, check_conf},
      {"piper", {kPiper}, check_piper},
      {"plan", {format::plan_json(full_plan())}, json_check(format::parse_plan, format::plan_json)},
      {"plans",
       {format::plan_list_json(full_plan_list())},
       json_check(format::parse_plan_list, format::plan_list_json)},
      {"calibration",
       {format::calibration_json(full_calibration())},
       json_check(format::parse_calibration, format::calibration_json)},
      {"validation",
       {format::validation_json(full_validation())},
       json_check(format::parse_validation, format::validation_json)},
      {"prediction", {prediction_document()}, json_check(format::parse_prediction, format::prediction_json)},
      {"timeline", {measurement_document()}, json_check(format::parse_measurement, format::measurement_json)},
      {"nccl_tests",
       {nccl_tests_text("all_reduce_perf", {"alpha", "alpha"}, {{8, 4.5}, {1048576, 20}, {8388608, 120}}),
        nccl_tests_json("all_gather_perf", "alpha", 2, {{8, 4.5}, {1048576, 20}, {8388608, 120}})},
       check_nccl_test},
      {"nccl_topology", {kNcclDump}, check_nccl_topology},
      {"project",
       {project::project_text(project::new_project({})), kProject},
       json_check(project::parse_project, project::project_text)},
      {"steps", {format::steps_json(full_steps())}, json_check(format::parse_steps, format::steps_json)},
      {"safetensors",
       {format::safetensors_header_text(safetensors_header())},
       json_check(
           [](const std::string& text, const std::string& file) {
             return format::parse_safetensors_header(text, kSafetensorsData, file);
           },
           format::safetensors_header_text)},
      {"shard_index", {R"({"weight_map":{"a":"m-1.safetensors","b":"m-2.safetensors"}})"}, check_shard_index},
      {"pipedream", {kProfile, with_crlf(kProfile)}, check_profile},
  };
  return table;
}

}  // namespace stagecraft::testing
