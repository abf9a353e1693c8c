#include "costmodel/interchange/chakra.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <protozero/pbf_reader.hpp>
#include <random>
#include <stdexcept>
#include <variant>

#include "costmodel/bound_plan.h"
#include "costmodel/errors.h"
#include "costmodel/prediction/predict.h"
#include "tests/support/chains.h"
#include "tests/support/run_command.h"

namespace stagecraft::interchange {
namespace {

using testing::chain_graph;
using ::testing::ElementsAre;
using testing::flat_topology;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using testing::one_layer_a_stage;

using Ids = std::vector<std::uint64_t>;

Timeline predicted(const Graph& graph, const Topology& topology, const Plan& plan) {
  return std::get<Prediction>(predict(graph, topology, BoundPlan(plan))).timeline;
}

std::string text_of(const ChakraNode& node) {
  std::string out = to_string(node.action.kind);
  return node.action.microbatch < 0 ? out : out + " " + std::to_string(node.action.microbatch);
}

/// A node decoded from its bytes.
struct Decoded {
  std::uint64_t id = 0;
  std::string name;
  int type = 0;
  Ids control, data;
  std::uint64_t start = 0;
  std::uint64_t duration = 0;
  std::map<std::string, std::variant<std::int64_t, std::string>> attributes;
};

std::string take_message(protozero::data_view& rest) {
  const char* begin = rest.data();
  const char* end = rest.data() + rest.size();
  const std::uint64_t length = protozero::decode_varint(&begin, end);
  EXPECT_LE(length, static_cast<std::uint64_t>(end - begin));
  const std::string out(begin, length);
  rest = {begin + length, static_cast<std::size_t>(end - begin) - length};
  return out;
}

/// Splits a file; the first message is the metadata.
std::vector<std::string> messages(const std::string& bytes) {
  protozero::data_view rest(bytes);
  std::vector<std::string> out;
  while (!rest.empty()) out.push_back(take_message(rest));
  return out;
}

std::pair<std::string, std::variant<std::int64_t, std::string>> decode_attribute(protozero::pbf_reader reader) {
  std::string name;
  std::variant<std::int64_t, std::string> value;
  while (reader.next()) {
    switch (reader.tag()) {
      case 1:
        name = reader.get_string();
        break;
      case 7:
        value = reader.get_int32();
        break;
      case 9:
        value = reader.get_int64();
        break;
      case 13:
        value = static_cast<std::int64_t>(reader.get_uint64());
        break;
      case 27:
        value = static_cast<std::int64_t>(reader.get_bool());
        break;
      case 29:
        value = reader.get_string();
        break;
      default:
        ADD_FAILURE() << "attribute field " << reader.tag();
        reader.skip();
    }
  }
  return {name, value};
}

Decoded decode_node(const std::string& message) {
  Decoded out;
  protozero::pbf_reader reader(message);
  while (reader.next()) {
    switch (reader.tag()) {
      case 1:
        out.id = reader.get_uint64();
        break;
      case 2:
        out.name = reader.get_string();
        break;
      case 3:
        out.type = reader.get_enum();
        break;
      case 4:
      case 5: {
        Ids& ids = reader.tag() == 4 ? out.control : out.data;
        for (const std::uint64_t id : reader.get_packed_uint64()) ids.push_back(id);
        break;
      }
      case 6:
        out.start = reader.get_uint64();
        break;
      case 7:
        out.duration = reader.get_uint64();
        break;
      case 10:
        out.attributes.insert(decode_attribute(reader.get_message()));
        break;
      default:
        ADD_FAILURE() << "node field " << reader.tag();
        reader.skip();
    }
  }
  return out;
}

/// When each node of each rank would end if it began as soon as its dependencies had ended: computations, reductions
/// and sends take their time, a receive ends with its send.
std::vector<std::vector<std::int64_t>> replay(const ChakraTrace& trace) {
  std::map<int, std::int64_t> arrived;  // by tag
  std::vector<std::vector<std::int64_t>> ends;
  for (const auto& nodes : trace.ranks) ends.emplace_back(nodes.size(), -1);
  for (bool moved = true; moved;) {
    moved = false;
    for (std::size_t rank = 0; rank < trace.ranks.size(); ++rank) {
      for (const ChakraNode& node : trace.ranks[rank]) {
        if (ends[rank][node.id] >= 0 || (node.kind == ChakraKind::Receive && !arrived.contains(node.tag))) continue;
        std::int64_t begin = 0;
        bool ready = true;
        for (const Ids* ids : {&node.control_dependencies, &node.data_dependencies}) {
          for (const std::uint64_t id : *ids) {
            begin = std::max(begin, ends[rank].at(id));
            ready = ready && ends[rank].at(id) >= 0;
          }
        }
        if (!ready) continue;
        const bool receives = node.kind == ChakraKind::Receive;
        ends[rank][node.id] = receives ? std::max(begin, arrived.at(node.tag)) : begin + node.duration_us;
        if (node.kind == ChakraKind::Send) arrived[node.tag] = ends[rank][node.id];
        moved = true;
      }
    }
  }
  return ends;
}

/// Field numbers and wire types by hand: field << 3 | type (0 varint, 2 length-delimited), so field 1 text is 0x0a,
/// field 29 text 0xea 0x01 (234), field 27 varint 0xd8 0x01 (216), field 13 0x68, field 9 0x48, field 7 0x38.
TEST(Chakra, WritesTheBytesOfATwoNodeTraceDerivedByHand) {
  ChakraNode forward;
  forward.action = {ActionKind::Forward, 0, 0, -1};
  forward.start_us = 1;
  forward.duration_us = 300;
  forward.bytes = 5_B;
  ChakraNode send;
  send.id = 1;
  send.kind = ChakraKind::Send;
  send.action = {ActionKind::SendActivation, 0, 0, 1};
  send.control_dependencies = {0};
  send.data_dependencies = {0};
  send.start_us = 301;
  send.bytes = 128_B;
  send.from = 0;
  send.to = 1;
  send.tag = 6;

  const auto bytes = [](std::initializer_list<int> values) {
    std::string out;
    for (const int v : values) out += static_cast<char>(v);
    return out;
  };
  // An attribute: field 10 of a node, 0x52, with length, name and value.
  const auto attribute = [&](const std::string& name, const std::string& value) {
    return bytes({0x52, static_cast<int>(2 + name.size() + value.size()), 0x0a, static_cast<int>(name.size())}) + name +
           value;
  };
  const std::string metadata =
      bytes({0x0a, 5}) + "0.0.4" + bytes({0x12, 11, 0x0a, 5}) + "title" + bytes({0xea, 0x01, 1}) + "m";
  const std::string first = bytes({0x08, 0, 0x12, 17}) + "stage 0 forward 0" +
                            bytes({0x18, 4, 0x30, 1, 0x38, 0xac, 0x02}) +  // COMP, 300 = 0b10'0101100
                            attribute("is_cpu_op", bytes({0xd8, 0x01, 0})) + attribute("num_ops", bytes({0x48, 0})) +
                            attribute("tensor_size", bytes({0x68, 5})) + attribute("step", bytes({0x38, 0})) +
                            attribute("stage", bytes({0x38, 0})) + attribute("microbatch", bytes({0x38, 0}));
  const std::string second = bytes({0x08, 1, 0x12, 25}) + "stage 0 send-activation 0" +
                             bytes({0x18, 5, 0x22, 1, 0, 0x2a, 1, 0, 0x30, 0xad, 0x02, 0x38, 0}) +
                             attribute("is_cpu_op", bytes({0xd8, 0x01, 0})) +
                             attribute("comm_size", bytes({0x48, 0x80, 0x01})) +
                             attribute("comm_src", bytes({0x38, 0})) + attribute("comm_dst", bytes({0x38, 1})) +
                             attribute("comm_tag", bytes({0x38, 6})) + attribute("step", bytes({0x38, 0})) +
                             attribute("stage", bytes({0x38, 0})) + attribute("microbatch", bytes({0x38, 0}));
  const auto with_length = [&](const std::string& message) {
    const auto n = static_cast<int>(message.size());
    return (n < 128 ? bytes({n}) : bytes({0x80 | (n & 0x7f), n >> 7})) + message;
  };
  EXPECT_EQ(chakra_bytes({forward, send}, "m"), with_length(metadata) + with_length(first) + with_length(second));
}

/// Two stages, two microbatches, 1F1B: stage 0 runs F0 F1 B0 B1, stage 1 F0 B0 F1 B1.
struct TwoStages {
  Graph graph = chain_graph({1, 2}, {2, 4}, 1000_B, 40_B);
  Topology topology = flat_topology(2, 1000, 0.5);
  Plan plan = one_layer_a_stage(graph, topology, {1, 1}, "1f1b", 2);
};

TEST(Chakra, StatesWhatEachActionNeedsAndNoMore) {
  const TwoStages two;
  const ChakraTrace trace = chakra_trace(predicted(two.graph, two.topology, two.plan), BoundPlan(two.plan), two.graph);
  std::vector<std::string> lines;
  const auto list = [](const Ids& ids) {
    std::string out;
    for (const std::uint64_t id : ids) out += " " + std::to_string(id);
    return out;
  };
  for (const ChakraNode& node : trace.ranks[1]) {
    lines.push_back(std::to_string(node.id) + " " + text_of(node) + ", after" + list(node.control_dependencies) +
                    ", reads" + list(node.data_dependencies));
  }
  EXPECT_THAT(lines, ElementsAre("0 receive-activation 0, after, reads",  // posted immediately, two ahead
                                 "1 receive-activation 1, after, reads",  //
                                 "2 forward 0, after, reads 0",           //
                                 "3 backward 0, after 2, reads 2",        //
                                 "4 send-gradient 0, after, reads 3",     //
                                 "5 forward 1, after 3, reads 1",         //
                                 "6 backward 1, after 5, reads 5",        //
                                 "7 send-gradient 1, after, reads 6",     //
                                 "8 update, after 6, reads 3 6"));
}

TEST(Chakra, GivesBothEndsOfAMessageOneTagAndItsBytes) {
  const TwoStages two;
  const ChakraTrace trace = chakra_trace(predicted(two.graph, two.topology, two.plan), BoundPlan(two.plan), two.graph);
  const auto at = [&](std::size_t rank, const std::string& text) {
    return *std::find_if(trace.ranks[rank].begin(), trace.ranks[rank].end(),
                         [&](const ChakraNode& n) { return text_of(n) == text; });
  };
  const ChakraNode sent = at(0, "send-activation 1");
  const ChakraNode received = at(1, "receive-activation 1");
  EXPECT_EQ(sent.tag, received.tag);
  EXPECT_EQ(sent.bytes, 1000_B);
  EXPECT_EQ(received.bytes, 1000_B);
  EXPECT_EQ(std::pair(sent.from, sent.to), std::pair(0, 1));
  EXPECT_EQ(std::pair(received.from, received.to), std::pair(0, 1));
  EXPECT_EQ(at(1, "send-gradient 1").tag, at(0, "receive-gradient 1").tag);
  EXPECT_NE(at(1, "send-gradient 1").tag, sent.tag);
  EXPECT_EQ(at(0, "forward 0").bytes, 1040_B);  // outputs and parameters
  EXPECT_EQ(at(0, "update").bytes, 40_B);
}

TEST(Chakra, ReplayedFromItsDependenciesTakesThePredictedStep) {
  // By hand, one microbatch: forward 1, message 0.5 + 1, forward 2, backward 4, message 1.5, backward 2: 12 s.
  TwoStages two;
  two.plan.microbatches = 1;
  const Timeline timeline = predicted(two.graph, two.topology, two.plan);
  EXPECT_EQ(timeline.steps.front().end, 12_s);
  const auto ends = replay(chakra_trace(timeline, BoundPlan(two.plan), two.graph));
  EXPECT_EQ(ends[0].back(), 12'000'000);
}

TEST(Chakra, DecodesToWhatTheFeederReads) {
  const TwoStages two;
  const ChakraTrace trace = chakra_trace(predicted(two.graph, two.topology, two.plan), BoundPlan(two.plan), two.graph);
  const std::vector<std::string> parts = messages(chakra_bytes(trace.ranks[1], "two"));
  ASSERT_EQ(parts.size(), 1 + trace.ranks[1].size());
  protozero::pbf_reader metadata(parts.front());
  ASSERT_TRUE(metadata.next(1));
  EXPECT_EQ(metadata.get_string(), "0.0.4");
  for (const ChakraNode& node : trace.ranks[1]) {
    const Decoded d = decode_node(parts[node.id + 1]);
    EXPECT_EQ(d.id, node.id);
    EXPECT_EQ(d.name, "stage 1 " + text_of(node));
    EXPECT_EQ(d.type, static_cast<int>(node.kind));
    EXPECT_EQ(d.control, node.control_dependencies);
    EXPECT_EQ(d.data, node.data_dependencies);
    EXPECT_EQ(d.start, static_cast<std::uint64_t>(node.start_us));
    EXPECT_EQ(d.duration, static_cast<std::uint64_t>(node.duration_us));
    std::map<std::string, std::variant<std::int64_t, std::string>> wanted{
        {"is_cpu_op", 0}, {"step", 0}, {"stage", 1}, {"microbatch", node.action.microbatch}};
    if (node.kind == ChakraKind::Compute) {
      wanted["num_ops"] = 0;
      wanted["tensor_size"] = node.bytes.value;
    } else {
      wanted["comm_size"] = 1000;
      wanted["comm_src"] = node.kind == ChakraKind::Send ? 1 : 0;
      wanted["comm_dst"] = node.kind == ChakraKind::Send ? 0 : 1;
      wanted["comm_tag"] = node.tag;
    }
    EXPECT_EQ(d.attributes, wanted) << d.name;
  }
}

TEST(Chakra, IsReadByProtocWithoutOurHelp) {
  const testing::CommandFolder folder;
  if (folder.run("command -v protoc").status != 0) GTEST_SKIP() << "protoc is not installed";
  ChakraNode node;
  node.id = 7;
  node.kind = ChakraKind::AllReduce;
  node.action = {ActionKind::Reduce, 2, -1, -1};
  node.data_dependencies = {300};
  node.start_us = 5;
  node.duration_us = 6;
  node.bytes = 9_B;
  node.group = 3;
  folder.write("node.bin", messages(chakra_bytes({node}, "t")).at(1));
  const testing::Outcome o = folder.run("protoc --decode_raw < node.bin");
  EXPECT_EQ(o.status, 0) << o.err;
  EXPECT_THAT(o.out, ::testing::StartsWith("1: 7\n2: \"stage 2 reduce\"\n3: 7\n5: \"\\254\\002\"\n6: 5\n7: 6\n"));
  EXPECT_THAT(o.out, HasSubstr("10 {\n  1: \"comm_size\"\n  9: 9\n}\n"));
  EXPECT_THAT(o.out, HasSubstr("10 {\n  1: \"pg_name\"\n  29: \"3\"\n}\n"));
}

TEST(Chakra, OfOneRankAddsUpToTheStepThoughEveryTimeIsRounded) {
  // 100 forwards of 0.4 us and backwards of 1.3 us and an update of 2.2 us: 172.2 us; rounded individually they would
  // be 0, 1 and 2 us, 102 us in total.
  Graph graph = chain_graph({0.4e-6}, {1.3e-6});
  graph.layers[0].update = Timing{Seconds(2.2e-6), {}, 0};
  const Topology topology = flat_topology(1);
  const Plan plan = one_layer_a_stage(graph, topology, {1}, "gpipe", 100);
  const ChakraTrace trace = chakra_trace(predicted(graph, topology, plan), BoundPlan(plan), graph);
  EXPECT_EQ(replay(trace)[0].back(), 172);
  EXPECT_THAT(trace.groups, IsEmpty());
}

TEST(Chakra, LetsTheNextStepsForwardsReadTheUpdate) {
  const Graph graph = chain_graph({1}, {1});
  const Plan plan = one_layer_a_stage(graph, flat_topology(1), {1}, "1f1b", 1);
  const std::vector<Action> list = BoundPlan(plan).action_lists().at(0);
  Timeline timeline;
  timeline.ranks = 1;
  for (int step = 0; step < 2; ++step) {
    double time = 10.0 * step;
    for (const Action& action : list) {
      timeline.spans.push_back({0, step, action, Seconds(time), Seconds(time + 1)});
      ++time;
    }
  }
  const ChakraTrace trace = chakra_trace(timeline, BoundPlan(plan), graph);
  ASSERT_EQ(trace.ranks[0].size(), 6U);
  EXPECT_THAT(trace.ranks[0][3].data_dependencies, ElementsAre(2U));
  EXPECT_THAT(trace.ranks[0][3].control_dependencies, ElementsAre(2U));
  EXPECT_EQ(trace.ranks[0][3].step, 1);
  EXPECT_EQ(trace.ranks[0][3].start_us, 10'000'000);
}

TEST(Chakra, ReducesAmongReplicasAndAmongHoldersOfATiedParameter) {
  // Stage 0 has two replicas; 10 of its 40 bytes are tied to stage 1.
  Graph graph = chain_graph({1, 1}, {1, 1}, 8_B, 40_B);
  for (Layer& layer : graph.layers) layer.tied = {{"shared", 10_B}};
  const Topology topology = flat_topology(3, 1000);
  const Plan plan = one_layer_a_stage(graph, topology, {2, 1}, "1f1b", 2);
  const Timeline timeline = predicted(graph, topology, plan);
  const ChakraTrace trace = chakra_trace(timeline, BoundPlan(plan), graph);
  EXPECT_EQ(trace.groups, (std::map<int, std::vector<int>>{{1, {0, 1}}, {3, {0, 1, 2}}}));
  EXPECT_EQ(chakra_groups_json(trace), "{\"1\":[0,1],\"3\":[0,1,2]}\n");
  std::vector<ChakraNode> reductions;
  for (const ChakraNode& node : trace.ranks[0]) {
    if (node.kind == ChakraKind::AllReduce) reductions.push_back(node);
  }
  ASSERT_EQ(reductions.size(), 2U);
  EXPECT_EQ(reductions[0].bytes, 30_B);
  EXPECT_EQ(reductions[0].group, 1);
  EXPECT_EQ(reductions[1].bytes, 10_B);
  EXPECT_EQ(reductions[1].group, 3);
  EXPECT_THAT(reductions[1].control_dependencies, ElementsAre(reductions[0].id));
  // Three quarters of the bytes take three quarters of the time; both reductions together take all of it.
  const auto span = std::find_if(timeline.spans.begin(), timeline.spans.end(),
                                 [](const Span& s) { return s.rank == 0 && s.action.kind == ActionKind::Reduce; });
  const double us = (span->end - span->start).value * 1e6;
  EXPECT_NEAR(static_cast<double>(reductions[0].duration_us), us * 0.75, 1);
  EXPECT_EQ(reductions[1].start_us + reductions[1].duration_us, std::llround(span->end.value * 1e6));
  EXPECT_THAT(trace.ranks[0].back().data_dependencies, ElementsAre(reductions[0].id, reductions[1].id));
  const Decoded d = decode_node(messages(chakra_bytes(trace.ranks[0], "")).at(reductions[1].id + 1));
  EXPECT_EQ(std::get<std::string>(d.attributes.at("pg_name")), "3");
  EXPECT_EQ(std::get<std::int64_t>(d.attributes.at("comm_type")), 0);
  EXPECT_FALSE(d.attributes.contains("involved_dim"));
}

TEST(Chakra, ReducesEachSharedParameterAmongItsOwnHolders) {
  // Stages 0 and 1 share 10 B, stages 1 and 2 share 30 B. Stage 1 takes a quarter of its time for the first.
  Graph graph = chain_graph({1, 1, 1}, {1, 1, 1}, 8_B, 40_B);
  graph.layers[0].tied = {{"a", 10_B}};
  graph.layers[1].tied = {{"a", 10_B}, {"b", 30_B}};
  graph.layers[2].tied = {{"b", 30_B}};
  const Topology topology = flat_topology(3, 1000);
  const Plan plan = one_layer_a_stage(graph, topology, {1, 1, 1}, "1f1b", 2);
  const ChakraTrace trace = chakra_trace(predicted(graph, topology, plan), BoundPlan(plan), graph);
  EXPECT_EQ(trace.groups, (std::map<int, std::vector<int>>{{4, {0, 1}}, {5, {1, 2}}}));
  const auto reductions = [&](std::size_t rank) {
    std::vector<ChakraNode> out;
    for (const ChakraNode& node : trace.ranks[rank]) {
      if (node.kind == ChakraKind::AllReduce) out.push_back(node);
    }
    return out;
  };
  ASSERT_EQ(reductions(0).size(), 1U);
  EXPECT_EQ(reductions(0)[0].bytes, 10_B);
  ASSERT_EQ(reductions(1).size(), 2U);
  EXPECT_EQ(reductions(1)[0].bytes, 10_B);
  EXPECT_EQ(reductions(1)[1].bytes, 30_B);
  const std::int64_t all = reductions(1)[0].duration_us + reductions(1)[1].duration_us;
  EXPECT_NEAR(static_cast<double>(reductions(1)[0].duration_us), static_cast<double>(all) / 4, 1);
  ASSERT_EQ(reductions(2).size(), 1U);
  EXPECT_EQ(reductions(2)[0].bytes, 30_B);
}

TEST(Chakra, KeepsItsPromisesOnRandomPlans) {
  const std::uint32_t seed = 20261121;
  SCOPED_TRACE("seed " + std::to_string(seed));
  std::mt19937 random(seed);
  const auto up_to = [&](int n) { return static_cast<int>(random() % static_cast<unsigned>(n)) + 1; };
  for (int round = 0; round < 60; ++round) {
    const int stages = up_to(4);
    std::vector<double> forward;
    std::vector<double> backward;
    std::vector<int> replicas;
    int devices = 0;
    for (int s = 0; s < stages; ++s) {
      forward.push_back(up_to(1000) * 1.37e-6);
      backward.push_back(up_to(1000) * 2.11e-6);
      replicas.push_back(up_to(3));
      devices += replicas.back();
    }
    Graph graph = chain_graph(forward, backward, Bytes(up_to(5000)), Bytes(up_to(5000)));
    if (stages > 2 && round % 3 == 0) {
      for (const std::size_t layer : {std::size_t{0}, std::size_t{2}}) graph.layers[layer].tied = {{"w", 1_B}};
    }
    if (stages > 2) graph.edges.push_back({0, 2, 0});  // a skip connection
    const Topology topology = flat_topology(devices, 1e6, 1e-5);
    const Plan plan = one_layer_a_stage(graph, topology, replicas, round % 2 ? "gpipe" : "1f1b", up_to(7));
    const ChakraTrace trace = chakra_trace(predicted(graph, topology, plan), BoundPlan(plan), graph);

    std::map<int, std::vector<ChakraNode>> by_tag;
    std::map<int, std::vector<int>> reducing;
    for (std::size_t rank = 0; rank < trace.ranks.size(); ++rank) {
      std::int64_t busy_until = 0;
      for (const ChakraNode& node : trace.ranks[rank]) {
        for (const Ids* ids : {&node.control_dependencies, &node.data_dependencies}) {
          for (const std::uint64_t id : *ids) {
            ASSERT_LT(id, node.id);
            const ChakraNode& before = trace.ranks[rank][id];
            EXPECT_LE(before.start_us + before.duration_us, node.start_us);
          }
        }
        EXPECT_GE(node.duration_us, 0);
        if (node.kind == ChakraKind::Send || node.kind == ChakraKind::Receive) {
          by_tag[node.tag].push_back(node);
        } else {
          EXPECT_GE(node.start_us, busy_until);
          busy_until = node.start_us + node.duration_us;
        }
        if (node.kind == ChakraKind::AllReduce) reducing[node.group].push_back(static_cast<int>(rank));
      }
    }
    for (const auto& [tag, ends] : by_tag) {
      ASSERT_EQ(ends.size(), 2U);
      const bool first_sends = ends[0].kind == ChakraKind::Send;
      EXPECT_EQ(ends[first_sends ? 1 : 0].kind, ChakraKind::Receive);
      EXPECT_EQ(ends[0].bytes, ends[1].bytes);
      EXPECT_EQ(std::pair(ends[0].from, ends[0].to), std::pair(ends[1].from, ends[1].to));
      EXPECT_EQ(ends[0].action.microbatch, ends[1].action.microbatch);
    }
    EXPECT_EQ(reducing, trace.groups);  // each member of a group reduces once
    for (const auto& ends : replay(trace)) EXPECT_THAT(ends, ::testing::Each(::testing::Ge(0)));  // none waits forever
  }
}

TEST(Chakra, NamesWhatTheTimelineAndThePlanDoNotShare) {
  const TwoStages two;
  const Timeline whole = predicted(two.graph, two.topology, two.plan);
  const auto message = [&](auto change) {
    Timeline timeline = whole;
    change(timeline);
    try {
      (void)chakra_trace(timeline, BoundPlan(two.plan), two.graph);
    } catch (const std::invalid_argument& e) { return std::string(e.what()); }
    return std::string("no complaint");
  };
  EXPECT_EQ(message([](Timeline&) {}), "no complaint");
  EXPECT_EQ(message([](Timeline& t) { t.ranks = 3; }), "the timeline has 3 ranks, the plan has 2");
  EXPECT_EQ(message([](Timeline& t) {
              std::erase_if(t.spans, [](const Span& s) { return s.action == Action{ActionKind::Forward, 1, 1, -1}; });
            }),
            "rank 1, step 0, stage 1: forward of microbatch 1 has no span in the timeline");
  EXPECT_EQ(message([](Timeline& t) { t.spans.push_back(t.spans.front()); }),
            "rank 0, step 0, stage 0: forward of microbatch 0 has two spans");
  EXPECT_EQ(message([](Timeline& t) { t.spans.push_back({0, 0, {ActionKind::Reduce, 0, -1, -1}, 1_s, 2_s}); }),
            "rank 0, step 0, stage 0: reduce is not in the plan");
  EXPECT_THAT(message([](Timeline& t) { t.spans.front().start = Seconds(-1); }),
              HasSubstr("forward of microbatch 0 is at -1.000000 s, expected 0 to 10^9 s in a trace"));
  EXPECT_EQ(message([&](Timeline& t) {
              for (const Span& span : whole.spans) {
                t.spans.push_back(span);
                t.spans.back().step = 1 << 30;
              }
            }),
            "the steps have more messages than 31-bit ids; export fewer steps");
}

TEST(Chakra, WritesOneFilePerRankAndTheGroups) {
  const testing::CommandFolder folder;
  const TwoStages two;
  const ChakraTrace trace = chakra_trace(predicted(two.graph, two.topology, two.plan), BoundPlan(two.plan), two.graph);
  write_chakra((folder.path() / "deep" / "traces").string(), trace, "two");
  EXPECT_EQ(folder.read("deep/traces/chakra.1.et"), chakra_bytes(trace.ranks[1], "two"));
  EXPECT_EQ(folder.read("deep/traces/comm_groups.json"), "{}\n");
  folder.write("file", "");
  try {
    write_chakra((folder.path() / "file").string(), trace, "two");
    ADD_FAILURE() << "wrote into a file";
  } catch (const FormatError& e) { EXPECT_THAT(e.what(), HasSubstr("/file")); }
}

}  // namespace
}  // namespace stagecraft::interchange
