#include "costmodel/report/report.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <pugixml.hpp>
#include <set>
#include <sstream>
#include <string>
#include <vector>

#include "costmodel/accuracy/step_change.h"
#include "costmodel/analysis/explain.h"
#include "costmodel/errors.h"
#include "costmodel/format/files/outputs.h"
#include "costmodel/format/graph_json.h"
#include "costmodel/format/plan_json.h"
#include "costmodel/format/prediction_json.h"
#include "costmodel/format/results/accuracy_json.h"
#include "costmodel/format/timeline_json.h"
#include "costmodel/format/topology_json.h"
#include "costmodel/report/pictures.h"
#include "tests/costmodel/documents.h"
#include "tests/costmodel/report/check_picture.h"
#include "tests/support/chains.h"

namespace stagecraft::report {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Not;

/// Rank 0: forwards of 0 and 1 in 0..1..2 s, backward 4..6; rank 1: waits 0..1, forward 1..2, backward 2..4 s.
Timeline tiny_timeline() {
  Timeline out;
  out.ranks = 2;
  out.stage_of_rank = {0, 1};
  out.steps = {{0, 0_s, 8_s}};
  out.spans = {
      {0, 0, {ActionKind::Forward, 0, 0, -1}, 0_s, 1_s},  {0, 0, {ActionKind::Forward, 0, 1, -1}, 1_s, 2_s},
      {0, 0, {ActionKind::Backward, 0, 0, -1}, 4_s, 6_s}, {1, 0, {ActionKind::ReceiveActivation, 1, 0, 0}, 0_s, 1_s},
      {1, 0, {ActionKind::Forward, 1, 0, -1}, 1_s, 2_s},  {1, 0, {ActionKind::Backward, 1, 0, -1}, 2_s, 4_s}};
  return out;
}

/// A graph of `count` layers in a row, with an arrow from the first to the last one, and its plan of three stages.
Graph row_graph(int count, const std::string& name = "layer") {
  Graph graph;
  graph.name = "row";
  for (int i = 0; i < count; ++i) {
    Layer& layer = graph.layers.emplace_back();
    layer.id = name + std::to_string(i);
    layer.name = layer.id;
    layer.forward = {Seconds(0.001 * (i + 1)), Seconds(0.0002), 5};
    layer.backward = {Seconds(0.002 * (i + 1)), Seconds(0.0002), 5};
    layer.parameter_bytes = Bytes(std::int64_t{1024} * (i + 1));
    layer.outputs = {{Bytes(2048), {}, "", true}};
    if (i > 0) graph.edges.push_back({i - 1, i, {}});
  }
  graph.edges.push_back({0, count - 1, {}});
  return graph;
}

Plan row_plan(const Graph& graph, int stages) {
  Topology topology = testing::flat_topology(stages);
  Partition partition;
  const int layers = static_cast<int>(graph.layers.size());
  for (int i = 0; i < layers; ++i) partition.stage_of_layer.push_back(i * stages / layers);
  partition.replicas.assign(static_cast<std::size_t>(stages), 1);
  return make_plan(graph, topology, partition, {});
}

ReportDocuments full_documents() {
  ReportDocuments d;
  d.graph = {"graph.json", row_graph(40)};
  d.topology = {"topology.json", full_topology()};
  d.plans.push_back({"plan.json", row_plan(d.graph->value, 4)});
  Prediction prediction = full_prediction();
  prediction.timeline = tiny_timeline();
  d.predictions.push_back({"prediction.json", prediction});
  Measurement measurement = full_measurement();
  measurement.timeline = tiny_timeline();
  d.runs.push_back({"measured.json", measurement});
  d.comparisons.push_back({"comparison.json", full_comparison()});
  d.lists.push_back({"plans.json", full_plan_list()});
  d.validation = {"validation.json", full_validation()};
  return d;
}

// Two stages with forwards of 1 s and backwards of 2 s; the second updates for 3 s. Rank 0: 0-1, 1-2, 4-6 and 7-9 s.
// Rank 1: 1-2, 2-4, 4-5, 5-7 and the update 7-10 s. Of 2 * 10 s, 15 s are work: 25 % idle. In a run, each rank begins
// its next step after 9 s: 16.7 %.
TEST(Report, HasOneIdleShareOfAPlanAndOneInARun) {
  Graph graph = testing::chain_graph({1, 1}, {2, 2});
  graph.layers[1].update = Timing{3_s, {}, 0};
  const Topology topology = testing::flat_topology(2);
  const BoundPlan plan(testing::one_layer_a_stage(graph, topology, {1, 1}, "1f1b", 2));
  const auto p = std::get<Prediction>(predict(graph, topology, plan));
  EXPECT_EQ(p.iteration, 10_s);
  EXPECT_EQ(bubble_text(p, ""), "idle 25.0 %");
  EXPECT_DOUBLE_EQ(idle_time(mean_parts(p)).value, 2.5);
  EXPECT_DOUBLE_EQ(*step_change(p, p).bubble.first, 0.25);
  const auto mean = [](const std::vector<double>& shares) { return (shares[0] + shares[1]) / 2; };
  EXPECT_DOUBLE_EQ(mean(idle_shares(p)), 0.25);
  EXPECT_DOUBLE_EQ(mean(idle_shares_of_positions(p)), 0.25);
  EXPECT_DOUBLE_EQ(idle_in_run(p), 1.0 / 6);
  Measurement run;
  run.timeline = p.timeline;
  const Comparison comparison = compare(p, run);
  EXPECT_DOUBLE_EQ(mean({comparison.bubbles[0].share.predicted, comparison.bubbles[1].share.predicted}), 1.0 / 6);
  ReportDocuments d;
  d.predictions.push_back({"prediction.json", p});
  EXPECT_THAT(
      sections(d).front().markup,
      HasSubstr("<b>25.0 %</b><span>idle</span><small>waiting or without work, mean over the ranks; 16.7 % in a "
                "run</small>"));
}

// Of two replicas, the first runs two microbatches of 3 s, the second one; then a ring sums 400 B at 100 B/s, 4 s. The
// second waits for 3 of 10 s: idle for 15 % on average. A run measures that wait as part of its reduce.
TEST(Report, CountsTheWaitForOthersAsReductionInARunAlone) {
  const Graph graph = testing::chain_graph({1}, {2}, 0_B, 400_B);
  const Topology topology = testing::flat_topology(2, 100);
  const auto p = std::get<Prediction>(
      predict(graph, topology, BoundPlan(testing::one_layer_a_stage(graph, topology, {2}, "1f1b", 3))));
  EXPECT_EQ(p.iteration, 10_s);
  EXPECT_EQ(bubble_text(p, ""), "idle 15.0 %");
  EXPECT_DOUBLE_EQ(idle_time(mean_parts(p)).value, 1.5);
  EXPECT_NEAR(idle_in_run(p), 0, 1e-12);
  Measurement run;
  run.timeline = p.timeline;
  for (const BubbleComparison& rank : compare(p, run).bubbles) {
    EXPECT_NEAR(rank.share.predicted, 0, 1e-12);
    EXPECT_NEAR(rank.share.measured, 0, 1e-12);
  }
}

TEST(Gantt, PutsBarsWhereTheirTimesAre) {
  const Timeline timeline = tiny_timeline();
  const Picture picture = gantt_picture("gantt", {{"predicted", &timeline, 0_s, 8_s}});
  const pugi::xml_document document = parsed(picture.inner);
  std::vector<std::pair<double, double>> bars;
  for (const auto& node : document.select_nodes("//rect[@class='bar']"))
    bars.emplace_back(node.node().attribute("x").as_double(), node.node().attribute("width").as_double());
  // 8 s in steps of 1 s: 900 pixels are 8 s from 150 on, so 112.5 pixels a second.
  EXPECT_THAT(bars, ElementsAre(std::pair(150.0, 112.5), std::pair(262.5, 112.5), std::pair(600.0, 225.0),
                                std::pair(150.0, 112.5), std::pair(262.5, 112.5), std::pair(375.0, 225.0)));
  EXPECT_THAT(picture.inner, HasSubstr("forward of stage 0, microbatch 1, 1.00 s from 1.00 s"));
  check_picture(picture);
}

TEST(Gantt, JoinsBarsTooNarrowToSee) {
  Timeline timeline = tiny_timeline();
  timeline.spans.clear();
  for (int m = 0; m < 10000; ++m)
    timeline.spans.push_back({0, 0, {ActionKind::Forward, 0, m, -1}, Seconds(m * 0.0008), Seconds((m + 1) * 0.0008)});
  const Picture picture = gantt_picture("gantt", {{"predicted", &timeline, 0_s, 8_s}});
  EXPECT_LT(picture.inner.size(), 30000U);  // 8 s of 900 pixels in bars of up to 41 pixels: about 22 bars
  EXPECT_THAT(picture.inner, HasSubstr("actions, "));
}

TEST(Gantt, TakesTheMeasuredStepNextToTheMedian) {
  Measurement run;
  run.timeline.ranks = 1;
  run.timeline.stage_of_rank = {0};
  double start = 0;
  for (const double time : {9.0, 5.0, 1.0, 4.0, 2.0}) {  // the first two are skipped: the median is 2
    const int step = static_cast<int>(run.timeline.steps.size());
    run.timeline.steps.push_back({step, Seconds(start), Seconds(start + time)});
    run.timeline.spans.push_back({0, step, {ActionKind::Forward, 0, 0, -1}, Seconds(start), Seconds(start + time)});
    start += time;
  }
  const auto shown = shown_step(run);
  ASSERT_TRUE(shown);
  EXPECT_EQ(shown->title, "measured, step 4");
  EXPECT_EQ(shown->begin, 19_s);
  run.timeline.spans.pop_back();  // then 1 and 4 are left, and 1 is nearer to 2
  EXPECT_EQ(shown_step(run)->title, "measured, step 2");
  run.timeline.spans.clear();
  EXPECT_FALSE(shown_step(run));
}

TEST(TextGantt, ShowsEachColumnsAction) {
  const Timeline timeline = tiny_timeline();
  // 16 + 3 characters beside 40 columns, 5 a second. 4.00 s is centred on column 20, 8.00 s ends at the last.
  const std::string text = text_gantt({"predicted", &timeline, 0_s, 8_s}, 59, false);
  EXPECT_EQ(text,
            "rank 0 (stage 0) |F0---F1---..........B0========..........|\n"
            "rank 1 (stage 1) |~~~~~F0---B0========....................|\n"
            "                  0                4.00 s           8.00 s\n"
            "F forward, B backward, ~ waiting for a message, . idle\n");
  EXPECT_THAT(text_gantt({"predicted", &timeline, 0_s, 8_s}, 59, true), HasSubstr("\x1b[36mF0---\x1b[0m"));
}

TEST(TextGantt, DrawsStepsOnOneTimeAxis) {
  const Timeline timeline = tiny_timeline();
  Timeline shorter = timeline;
  // Of the next step, which begins before the axis ends.
  shorter.spans.push_back({0, 1, {ActionKind::Forward, 0, 0, -1}, 6_s, 7_s});
  const std::string text =
      text_gantts({{"predicted", &timeline, 0_s, 8_s}, {"measured, step 0", &shorter, 0_s, 6_s}}, 59, false);
  const std::string bars =
      "rank 0 (stage 0) |F0---F1---..........B0========..........|\n"
      "rank 1 (stage 1) |~~~~~F0---B0========....................|\n"
      "                  0                4.00 s           8.00 s\n"
      "F forward, B backward, ~ waiting for a message, . idle\n";
  EXPECT_EQ(text, "predicted:\n" + bars + "\nmeasured, step 0:\n" + bars);
}

TEST(Layout, SendsNoArrowThroughAStageThatItDoesNotTouch) {
  const Graph graph = row_graph(40);
  const Plan plan = row_plan(graph, 4);
  const Picture picture = layout_picture("graph", graph, &plan);
  check_picture(picture);
  const pugi::xml_document document = parsed(picture.inner);
  struct Frame {
    double left, top, right, bottom;
  };
  std::vector<Frame> frames;
  for (const auto& node : document.select_nodes("//rect[@fill-opacity='0.16']")) {
    const pugi::xml_node r = node.node();
    const double x = r.attribute("x").as_double();
    const double y = r.attribute("y").as_double();
    frames.push_back({x, y, x + r.attribute("width").as_double(), y + r.attribute("height").as_double()});
  }
  ASSERT_EQ(frames.size(), 4U);
  for (std::size_t f = 1; f < 4; ++f) EXPECT_LT(frames[f - 1].right, frames[f].left) << "in the model's order";
  // The arrow from layer 0 (stage 0) to layer 39 (stage 3) touches neither stage 1 nor stage 2.
  bool found = false;
  for (const auto& node : document.select_nodes("//path")) {
    if (std::string(node.node().child_value("title")) != "layer0 to layer39") continue;
    found = true;
    double x = 0;
    double y = 0;
    std::string d = node.node().attribute("d").value();
    std::replace(d.begin(), d.end(), ',', ' ');
    std::istringstream in(d);
    for (char command = 0; in >> command;) {
      const double x0 = x;
      const double y0 = y;
      if (command == 'M') in >> x >> y;
      if (command == 'H') in >> x;
      if (command == 'V') in >> y;
      if (command == 'M') continue;
      for (const std::size_t f : {1U, 2U}) {
        const bool apart = std::max(x, x0) < frames[f].left || std::min(x, x0) > frames[f].right ||
                           std::max(y, y0) < frames[f].top || std::min(y, y0) > frames[f].bottom;
        EXPECT_TRUE(apart) << "stage " << f;
      }
    }
  }
  EXPECT_TRUE(found);
}

TEST(Pictures, HaveLabelsThatDoNotOverlap) {
  const ReportDocuments d = full_documents();
  std::size_t pictures = 0;
  std::set<std::string> names;
  for (const Section& section : sections(d)) {
    for (const Picture& picture : section.pictures) {
      check_picture(picture);
      EXPECT_TRUE(names.insert(picture.name).second) << picture.name;
      ++pictures;
    }
  }
  // Plans twice, timeline, loss, breakdown, memory twice, scaling, actions, layers twice, model, links, validation.
  EXPECT_EQ(pictures, 14U);
  check_picture(layout_picture("graph", row_graph(300), nullptr));
  check_picture(cumulative_picture("sums", row_graph(300, std::string(60, 'w')), nullptr));
  check_picture(layer_bars_picture("bars", row_graph(300), nullptr));
  check_picture(memory_picture("memory", {{"a", &d.predictions[0].value}, {"b", &d.predictions[0].value}}, 9_B));
}

/// Pixels of a path: every "M" and "L" point, and each "H" and "V" on its own axis.
std::string path_of(const Picture& picture, const std::string& fill) {
  const pugi::xml_document document = parsed(picture.inner);
  for (const auto& node : document.select_nodes("//path")) {
    if (node.node().attribute("fill").value() == fill) return node.node().attribute("d").value();
  }
  return "";
}

TEST(MemoryOverTime, StepsAtEachMoment) {
  Prediction prediction;
  prediction.memory_over_time = {{3, {{0_s, 4_B}, {1_s, 8_B}, {2_s, 0_B}}}};
  const Picture picture = memory_over_time_picture("memory-course", prediction, 10_B);
  check_picture(picture);
  EXPECT_THAT(picture.inner, HasSubstr("rank 3, at most 8 B"));
  EXPECT_THAT(picture.inner, HasSubstr("limit 10 B"));
  // 2 s are all of the 620 pixels from 86 on, and 10 B all of the 260 below 20.
  EXPECT_EQ(path_of(picture, "none"), "M86.00,176.00 H86.00 V176.00 H396.00 V72.00 H706.00 V280.00");
  const Picture far = memory_over_time_picture("memory-course", prediction, Bytes(1 << 20));
  check_picture(far);
  EXPECT_THAT(far.inner, Not(HasSubstr("limit")));
  EXPECT_THAT(far.caption, HasSubstr("The device has 1.00 MiB."));
}

// Losses of 4, 2, none and 1 after steps 1 to 4: steps are 240 pixels apart from 86 on, and the axis from 0 to 4 has
// the 260 pixels below 20.
TEST(Loss, IsDrawnOverTheStepsWithAGapWhereItIsNotFinite) {
  Measurement run;
  for (int step = 0; step < 4; ++step) run.timeline.steps.push_back({step, Seconds(step), Seconds(step + 1)});
  run.losses = {4, 2, std::nan(""), 1};
  const Picture picture = loss_picture("loss-curve", {{"run.json", &run}});
  check_picture(picture);
  EXPECT_EQ(path_of(picture, "none"), "M86.00,20.00 L326.00,150.00 M806.00,215.00 ");
  EXPECT_THAT(picture.inner, HasSubstr("step 2: 2<"));
  // 1000 steps: means of three.
  Measurement longer;
  for (int step = 0; step < 1000; ++step) {
    longer.timeline.steps.push_back({step, Seconds(step), Seconds(step + 1)});
    longer.losses.push_back(-1 + 1e-3 * step);
  }
  const Picture both = loss_picture("loss-curve", {{"run.json", &run}, {"longer.json", &longer}});
  check_picture(both);
  EXPECT_THAT(both.caption, HasSubstr("mean of several steps"));
  run.losses.assign(4, std::nan(""));
  check_picture(loss_picture("loss-curve", {{"run.json", &run}}));
}

TEST(Report, NamesItsFilesAndWhatMadeThem) {
  ReportDocuments d;
  d.predictions.push_back({"prediction.json", full_prediction()});
  Provenance& made = d.predictions[0].value.provenance;
  made.tool = "stagecraft-predict 0.1.0";
  made.date = "2026-11-28T12:00:00Z";
  made.notes["command"] = "stagecraft predict graph.json plan.json -o prediction.json";
  const Section files = sections(d).back();
  EXPECT_EQ(files.title, "Files");
  for (const std::string& text : {std::string("prediction.json"), made.tool, made.date, made.notes["command"]})
    EXPECT_THAT(files.markup, HasSubstr(">" + text + "<"));
  EXPECT_THAT(report_page(d, sections(d), "stagecraft 0.1.0, 2026-11-28"),
              HasSubstr("stagecraft report, stagecraft 0.1.0, 2026-11-28<"));
}

TEST(Scaling, DrawsThroughputOverCopies) {
  std::vector<ScalePoint> points(3);
  for (int i = 0; i < 3; ++i) {
    ScalePoint& point = points[static_cast<std::size_t>(i)];
    point.copies = 1 << i;
    point.efficiency = 1 - 0.25 * i;
    point.efficiency_low = 1 - 0.375 * i;
    point.efficiency_high = 1;
  }
  const Picture picture = scaling_picture("scaling-curve", points);
  check_picture(picture);
  // 4.2 copies are 620 pixels from 86 on, and a speed-up of 4.2 the 260 below 20: 1, 1.5 and 2 times.
  EXPECT_EQ(path_of(picture, "none"), "M233.62,218.10 L381.24,187.14 L676.48,156.19 ");
  for (int i = 3; i < 11; ++i) {
    points.push_back(points[1]);
    points.back().copies = 1 << i;
  }
  check_picture(scaling_picture("scaling-curve", points));  // labels of few copies would touch
}

TEST(Report, IsOneWellFormedPageWithoutANetwork) {
  const ReportDocuments d = full_documents();
  const std::string page = report_page(d, sections(d));
  EXPECT_EQ(page, report_page(d, sections(d)));
  EXPECT_EQ(format::text_kind(page), "HTML report");
  const pugi::xml_document document = parsed(page);
  std::set<std::string> ids;
  for (const auto& node : document.select_nodes("//*[@id]"))
    EXPECT_TRUE(ids.insert(node.node().attribute("id").value()).second) << node.node().attribute("id").value();
  for (const auto& node : document.select_nodes("//*[@href]")) {
    const std::string to = node.node().attribute("href").value();
    EXPECT_EQ(to[0], '#') << to;
    EXPECT_TRUE(ids.contains(to.substr(1))) << to;
  }
  EXPECT_TRUE(document.select_nodes("//*[@src]").empty());
  EXPECT_THAT(page, Not(HasSubstr("@import")));
  EXPECT_THAT(page, HasSubstr("90 % interval: 3.50 s to 4.50 s"));
  EXPECT_THAT(page, HasSubstr("prefers-color-scheme:dark"));
}

TEST(Report, ShowsListsOfPlans) {
  ReportDocuments d;
  d.lists.push_back({"plans.json", full_plan_list()});
  d.lists.push_back({"old.json", full_plan_list()});
  d.lists[0].value.memory_limit = 700_B;
  d.lists[1].value.plans[0].parts.reset();  // as version 1 without --explain
  d.lists[1].value.memory_limit.reset();
  d.topology = {"topology.json", full_topology()};
  d.topology->value.device.memory = 600_B;
  const std::vector<Section> parts = sections(d);
  ASSERT_EQ(parts.size(), 5U);  // summary, lists, links, files
  EXPECT_THAT(parts[1].title, "Plans to choose from: plans.json");
  EXPECT_THAT(parts[1].markup, HasSubstr("The 1 best plan by cost, of 3 that fit in memory; schedule 1f1b, 4 "
                                         "microbatches per step."));
  EXPECT_THAT(parts[1].markup, HasSubstr("shorter step than 11.0 s"));
  // Idle: 0.5 + 0.5 of 12 s. 1000 steps at 0.36.
  EXPECT_THAT(parts[1].markup,
              HasSubstr("<td class=\"left\">1</td><td class=\"left\">optimal</td><td class=\"left\">2-1</td><td>3</td>"
                        "<td>12.0 s</td><td>0.75</td><td>400 B</td><td>8.3 %</td><td>360</td>"));
  ASSERT_EQ(parts[1].pictures.size(), 2U);
  EXPECT_EQ(parts[1].pictures[0].name, "plan-front");
  EXPECT_THAT(parts[1].pictures[0].inner, HasSubstr("limit 700 B"));  // the list's own, not the topology's
  EXPECT_THAT(parts[1].pictures[1].inner, HasSubstr("1 (3 devices), compute: 9.00 s"));  // with the host's 1 s
  ASSERT_EQ(parts[2].pictures.size(), 1U);
  EXPECT_EQ(parts[2].pictures[0].name, "plan-front-2");
  EXPECT_THAT(parts[2].pictures[0].inner, HasSubstr("limit 600 B"));
  EXPECT_THAT(report_page(d, parts), HasSubstr("<h1>chain</h1>"));
}

TEST(Report, EscapesNames) {
  ReportDocuments d;
  const std::string hostile = "</title><script>alert(1)</script>&\"'\xff]]>";
  d.graph = {"<b>.json", row_graph(5, hostile)};
  d.graph->value.name = hostile;
  d.plans.push_back({hostile, row_plan(d.graph->value, 2)});
  const std::string page = report_page(d, sections(d));
  const pugi::xml_document document = parsed(page);
  EXPECT_EQ(document.select_nodes("//script").size(), 1U);
  EXPECT_THAT(page, Not(HasSubstr("alert(1)</script>")));
  for (const Section& section : sections(d)) {
    for (const Picture& picture : section.pictures) (void)parsed(picture_file(picture));
  }
}

TEST(Report, ReadsDocumentsByTheirFormat) {
  ReportDocuments d;
  add_document(d, format::graph_json(full_graph()), "a");
  add_document(d, format::topology_json(full_topology()), "b");
  add_document(d, format::plan_json(full_plan()), "c");
  add_document(d, format::prediction_json(full_prediction()), "d");
  add_document(d, format::measurement_json(full_measurement()), "e");
  add_document(d, format::comparison_json(full_comparison()), "f");
  add_document(d, format::plan_list_json(full_plan_list()), "lists");
  add_document(d, format::validation_json(full_validation()), "g");
  EXPECT_TRUE(d.graph && d.topology && d.validation);
  EXPECT_EQ(d.plans.size() + d.predictions.size() + d.runs.size() + d.comparisons.size() + d.lists.size(), 5U);
  const auto message = [&](const std::string& text) -> std::string {
    try {
      add_document(d, text, "x.json");
    } catch (const FormatError& e) { return e.what(); }
    return "";
  };
  EXPECT_EQ(message(R"({"format": "stagecraft.whatif", "version": 1})"),
            "x.json: /format: found \"stagecraft.whatif\", expected one of stagecraft.graph, stagecraft.topology, "
            "stagecraft.plan, stagecraft.prediction, stagecraft.timeline, stagecraft.comparison, "
            "stagecraft.plans, stagecraft.validation");
  EXPECT_THAT(message("buy milk"), HasSubstr("found no document of stagecraft"));
  EXPECT_EQ(message(format::graph_json(full_graph())),
            "x.json: a report shows one graph, and a is one, too; leave one out");
}

TEST(Report, PredictsPlansThatComeWithoutAPrediction) {
  ReportDocuments d;
  d.graph = {"graph.json", row_graph(8)};
  d.topology = {"topology.json", testing::flat_topology(2)};
  d.plans.push_back({"plan.json", row_plan(d.graph->value, 2)});
  std::vector<std::string> told;
  EXPECT_THAT(complete(d, [&](const std::string& step) { told.push_back(step); }), ::testing::IsEmpty());
  EXPECT_THAT(told, ::testing::ElementsAre("predicting plan.json"));
  ASSERT_EQ(d.predictions.size(), 1U);
  EXPECT_EQ(d.predictions[0].file, "plan.json, predicted");
  EXPECT_EQ(d.predictions[0].value.stages.size(), 2U);
}

TEST(Report, PairsRunsWithPredictionsOfTheSameRanks) {
  ReportDocuments d;
  const auto add_prediction = [&](const std::vector<int>& stage_of_rank) {
    d.predictions.emplace_back().value.timeline.stage_of_rank = stage_of_rank;
  };
  const auto add_run = [&](const std::vector<int>& stage_of_rank) {
    d.runs.emplace_back().value.timeline.stage_of_rank = stage_of_rank;
  };
  add_prediction({0, 1});
  for (int i = 0; i < 3; ++i) add_run({0, 1});
  EXPECT_THAT(prediction_of_run(d), ElementsAre(0, 0, 0));
  add_prediction({0, 1});
  add_prediction({0});
  add_run({0});
  add_run({0, 1, 2});
  EXPECT_THAT(prediction_of_run(d), ElementsAre(0, 1, 0, 2, std::nullopt));
}

}  // namespace
}  // namespace stagecraft::report
