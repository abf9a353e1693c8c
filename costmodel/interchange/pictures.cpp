#include "costmodel/interchange/pictures.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <map>
#include <set>
#include <stdexcept>
#include <vector>

#include "costmodel/format/escaping.h"
#include "costmodel/index.h"
#include "costmodel/interchange/pipedream_conf.h"
#include "costmodel/plan.h"
#include "costmodel/prediction/memory.h"
#include "costmodel/text/table.h"
#include "costmodel/text/units_text.h"

namespace stagecraft::interchange {
namespace {

// The "light" scheme of Paul Tol's colour-blind safe schemes, made for black text.
constexpr std::array<const char*, 8> kStageColours{"#77aadd", "#ee8866", "#eedd88", "#44bb99",
                                                   "#ffaabb", "#99ddff", "#bbcc33", "#aaaa00"};
/// For layers without a stage, by their share of the time: one hue, distinguished by lightness only.
struct Heat {
  double share;
  const char* colour;
  const char* text;
};
constexpr std::array<Heat, 4> kHeat{{{0.05, "#f4a261", "5 % and more"},
                                     {0.02, "#f9c79b", "2 % to 5 %"},
                                     {0.005, "#fce4cd", "0.5 % to 2 %"},
                                     {0, "#ffffff", "less"}}};
constexpr const char* kInputColour = "#eeeeee";
constexpr double kHeavy = 0.05;
constexpr std::size_t kLongest = 40;

/// markup_text with each backslash `backslashes` times. "\\N" is the node's name even in an HTML-like label, where two
/// backslashes make one; a tooltip is read twice, so it needs four.
std::string escaped(const std::string& text, std::size_t longest, std::size_t backslashes = 2) {
  std::string out;
  for (const char c : format::markup_text(text, longest)) out.append(c == '\\' ? backslashes : 1, c);
  return out;
}

Seconds both_ways(const Layer& layer) { return layer.forward.median + layer.backward.median; }

/// Runs of the list of layers that are drawn one below the other.
struct NodeColumn {
  int stage = -1;
  std::vector<int> layers;
};

class GraphPicture {
 public:
  GraphPicture(const Graph& graph, const Plan* plan) : graph_(graph), plan_(plan) {
    for (const Layer& layer : graph.layers) {
      if (is_input(layer)) continue;
      total_ += both_ways(layer);
      largest_ = std::max(largest_, activation_bytes(layer));
    }
    parameters_ = held_parameter_bytes(graph);
    stage_of_.assign(graph.layers.size(), -1);
    if (plan != nullptr) {
      const Graph staged = staged_graph(graph, *plan);
      for (std::size_t i = 0; i < stage_of_.size(); ++i) {
        if (!is_input(graph.layers[i])) stage_of_[i] = *staged.layers[i].stage;
      }
    }
    fill_columns();
  }

  std::string text() {
    out_ =
        "digraph layers {\n"
        "  graph [rankdir=TB, newrank=true, nodesep=0.18, ranksep=0.3, fontname=\"Helvetica\", fontsize=12, "
        "labelloc=t, labeljust=l, splines=true, bgcolor=white, pad=0.2];\n"
        "  node [shape=box, style=\"filled,rounded\", fontname=\"Helvetica\", fontsize=10, margin=\"0.09,0.04\", "
        "height=0.3, color=\"#333333\", fillcolor=white];\n"
        "  edge [color=\"#555555\", arrowsize=0.6, fontname=\"Helvetica\", fontsize=9];\n";
    out_ += "  label=<" + legend() + ">;\n";
    for (std::size_t i = 0; i < graph_.layers.size(); ++i) {
      if (is_input(graph_.layers[i])) node(to_int(i), "  ");
    }
    for (std::size_t c = 0; c < columns_.size();) c = stage_columns(c);
    order_columns();
    edges();
    return out_ + "}\n";
  }

 private:
  /// Columns of about equal length, as many as make the picture 1.5 times as wide as high.
  void fill_columns() {
    constexpr double kHeightOverWidth = 0.23;  // height of a layer's box with the arrow below it
    const std::vector<int> order = layer_list(graph_);
    const double columns =
        std::max(1.0, std::round(std::sqrt(1.5 * kHeightOverWidth * static_cast<double>(order.size()))));
    const auto longest =
        static_cast<std::size_t>(std::max(12.0, std::ceil(static_cast<double>(order.size()) / columns)));
    std::map<int, std::vector<int>> of_stage;
    for (const int layer : order) of_stage[stage_of_[to_index(layer)]].push_back(layer);
    column_of_.assign(graph_.layers.size(), -1);
    for (const auto& [stage, layers] : of_stage) {
      const std::size_t parts = (layers.size() + longest - 1) / longest;
      for (std::size_t p = 0; p < parts; ++p) {
        NodeColumn& column = columns_.emplace_back();
        column.stage = stage;
        const auto begin = layers.begin() + static_cast<long>(layers.size() * p / parts);
        column.layers.assign(begin, layers.begin() + static_cast<long>(layers.size() * (p + 1) / parts));
        for (const int layer : column.layers) column_of_[to_index(layer)] = to_int(columns_.size()) - 1;
      }
    }
  }

  const char* colour(int layer) const {
    const Layer& l = graph_.layers[to_index(layer)];
    if (is_input(l)) return kInputColour;
    const int stage = stage_of_[to_index(layer)];
    if (stage >= 0) return kStageColours[to_index(stage) % kStageColours.size()];
    for (const Heat& heat : kHeat) {
      if (share(l) >= heat.share) return heat.colour;
    }
    return kHeat.back().colour;
  }
  double share(const Layer& layer) const { return total_ > Seconds(0) ? both_ways(layer) / total_ : 0; }

  void node(int index, const std::string& indent) {
    const Layer& layer = graph_.layers[to_index(index)];
    std::string label = "<B>" + escaped(layer.id, kLongest) + "</B>";
    if (!layer.kind.empty() && layer.kind != layer.id) label += " " + escaped(layer.kind, kLongest);
    if (!is_input(layer)) {
      std::string facts = total_ > Seconds(0) ? format_seconds(both_ways(layer)) : "";
      if (layer.parameter_bytes > Bytes(0)) facts += (facts.empty() ? "" : ", ") + format_bytes(layer.parameter_bytes);
      if (!facts.empty()) label += "<BR/>" + facts;
    }
    out_ += fmt::format("{}n{} [label=<{}>, tooltip=\"{}\", fillcolor=\"{}\"{}{}];\n", indent, index, label,
                        escaped(layer.name.empty() ? layer.id : layer.name, std::string::npos, 4), colour(index),
                        is_input(layer) ? ", style=\"filled,dashed\"" : "",
                        !is_input(layer) && share(layer) >= kHeavy ? ", penwidth=2.5" : "");
  }

  /// The frame of a stage with its columns from `first` on, or one column without a stage; returns the next column.
  std::size_t stage_columns(std::size_t first) {
    const int stage = columns_[first].stage;
    std::size_t end = first + 1;
    while (stage >= 0 && end < columns_.size() && columns_[end].stage == stage) ++end;
    if (stage >= 0) {
      const std::string colour = kStageColours[to_index(stage) % kStageColours.size()];
      out_ += fmt::format(
          "  subgraph cluster_stage{} {{\n    label=<{}>; style=\"filled,rounded\"; fillcolor=\"{}40\"; "
          "color=\"#555555\"; "
          "margin=12;\n",
          stage, stage_label(stage), colour);
    }
    // dot places nested frames side by side in reverse order, whichever edges join their first layers.
    for (std::size_t c = end; c-- > first;) {
      out_ += fmt::format("    subgraph cluster_column{} {{\n      label=\"\"; style=invis; margin=4;\n", c);
      for (const int layer : columns_[c].layers) node(layer, "      ");
      out_ += "    }\n";
    }
    if (stage >= 0) out_ += "  }\n";
    return end;
  }

  std::string stage_label(int stage) const {
    const Stage& s = plan_->stages[to_index(stage)];
    Seconds time;
    std::vector<const Layer*> layers;
    for (std::size_t i = 0; i < stage_of_.size(); ++i) {
      if (stage_of_[i] != stage) continue;
      time += both_ways(graph_.layers[i]);
      layers.push_back(&graph_.layers[i]);
    }
    const auto replicas = s.devices.size();
    std::string text = fmt::format("<B>Stage {}</B>: {}, {}", stage, count_text(replicas, "replica"),
                                   count_text(layers.size(), "layer"));
    text += fmt::format("<BR ALIGN=\"LEFT\"/>device{} {}", replicas == 1 ? "" : "s", format_ranges(s.devices, ", "));
    text += "<BR ALIGN=\"LEFT\"/>" + format_seconds(time);
    if (replicas > 1)
      text += " = " + std::to_string(replicas) + " x " + format_seconds(time / static_cast<double>(replicas));
    return text + ", " + format_bytes(held_parameter_bytes(layers)) + (s.recompute ? ", recomputed" : "") +
           "<BR ALIGN=\"LEFT\"/>";
  }

  std::string legend() const {
    std::string text =
        fmt::format("<B>{}</B>: {}, {}, {} of parameters", escaped(graph_.name, 80),
                    count_text(layer_list(graph_).size(), "layer"), format_seconds(total_), format_bytes(parameters_));
    if (plan_ != nullptr) {
      text +=
          fmt::format("; {}, schedule {}, {}", count_text(plan_->stages.size(), "stage"), escaped(plan_->schedule, 40),
                      fmt::format("{} microbatch{}", plan_->microbatches, plan_->microbatches == 1 ? "" : "es"));
      if (plan_->iteration) text += ", predicted step " + format_seconds(*plan_->iteration);
    }
    std::string row;
    const auto swatch = [&](const std::string& colour, const std::string& what) {
      row += "<TD BGCOLOR=\"" + colour + "\" BORDER=\"1\">" + what + "</TD>";
    };
    if (plan_ == nullptr) {
      row += "<TD>share of the time:</TD>";
      for (const Heat& heat : kHeat) swatch(heat.colour, heat.text);
    } else {
      row += "<TD>colour: stage</TD>";
    }
    swatch(kInputColour, "input");
    row += "<TD>layer: forward + backward, parameters; thick frame: 5 % of the time or more; arrow: activation bytes" +
           std::string(plan_ == nullptr ? " of the larger ones" : " of edges between stages and of the larger ones") +
           "</TD>";
    return "<TABLE BORDER=\"0\" CELLBORDER=\"0\" CELLSPACING=\"3\"><TR><TD COLSPAN=\"8\" ALIGN=\"LEFT\">" + text +
           "</TD></TR><TR>" + row + "</TR></TABLE>";
  }

  /// Columns begin at the same level, from left to right.
  void order_columns() {
    if (columns_.size() < 2) return;
    std::string tops;
    for (const NodeColumn& column : columns_) tops += fmt::format(" n{};", column.layers.front());
    out_ += "  {rank=same;" + tops + "}\n";
    for (std::size_t c = 0; c + 1 < columns_.size(); ++c) {
      out_ += fmt::format("  n{} -> n{} [style=invis, weight=0];\n", columns_[c].layers.front(),
                          columns_[c + 1].layers.front());
    }
  }

  void edges() {
    // Several outputs between the same two layers are one arrow.
    std::map<std::pair<int, int>, std::set<int>> arrows;
    for (const Edge& edge : graph_.edges) arrows[{edge.source, edge.destination}].insert(edge.output.value_or(-1));
    for (const auto& [ends, outputs] : arrows) {
      const Layer& source = graph_.layers[to_index(ends.first)];
      Bytes bytes = activation_bytes(source);
      if (!outputs.contains(-1)) {
        bytes = Bytes(0);
        for (const int output : outputs) bytes += source.outputs[to_index(output)].bytes;
      }
      const int from = stage_of_[to_index(ends.first)];
      const int to = stage_of_[to_index(ends.second)];
      const bool crosses = from != to && from >= 0;
      const bool large = bytes > Bytes(0) && bytes.value >= largest_.value / 2 && !is_input(source);
      const int column = column_of_[to_index(ends.first)];
      const bool leaves = column >= 0 && column != column_of_[to_index(ends.second)];
      out_ += fmt::format(
          "  n{} -> n{} [{}{}{}];\n", ends.first, ends.second, leaves ? "constraint=false, " : "",
          crosses ? "penwidth=2, color=\"#000000\", " : "",
          crosses || large ? "label=\"" + format_bytes(bytes) + "\"" : "tooltip=\"" + format_bytes(bytes) + "\"");
    }
  }

  const Graph& graph_;
  const Plan* plan_;
  Seconds total_;
  Bytes parameters_;
  Bytes largest_;
  std::vector<int> stage_of_;
  std::vector<int> column_of_;
  std::vector<NodeColumn> columns_;
  std::string out_;
};

}  // namespace

std::string graph_dot(const Graph& graph, const Plan* plan) { return GraphPicture(graph, plan).text(); }

namespace {

// Okabe and Ito's colours without yellow, which is too light for white paper, and grey: safe for colour-blind readers.
constexpr std::array<const char*, 8> kColours{"#0072b2", "#d55e00", "#009e73", "#cc79a7",
                                              "#56b4e9", "#e69f00", "#000000", "#777777"};
constexpr double kLeft = 80;
constexpr double kTop = 30;
constexpr double kSize = 480;  // of the square
constexpr double kRadius = 5;
constexpr double kLegend = 180;
constexpr double kBottom = 60;
constexpr double kMargin = 1.25;  // room around the outermost times, as a factor
constexpr std::size_t kLongestName = 28;

/// A marker of shape `number`, filled with its colour.
std::string marker(std::size_t number, double x, double y, const std::string& title) {
  const double r = kRadius;
  const char* colour = kColours.at(number % kColours.size());
  const std::string end = fmt::format(" fill=\"{}\" fill-opacity=\"0.75\" stroke=\"{}\">{}</", colour, colour, title);
  const auto polygon = [&](std::initializer_list<std::pair<double, double>> corners) {
    std::string points;
    for (const auto& [dx, dy] : corners) points += fmt::format("{:.2f},{:.2f} ", x + dx, y + dy);
    points.pop_back();
    return fmt::format("<polygon points=\"{}\"{}polygon>\n", points, end);
  };
  switch (number % kColours.size()) {
    case 0:
      return fmt::format("<circle cx=\"{:.2f}\" cy=\"{:.2f}\" r=\"{}\"{}circle>\n", x, y, r, end);
    case 1:
      return polygon({{-r, -r}, {r, -r}, {r, r}, {-r, r}});
    case 2:
      return polygon({{0, -1.2 * r}, {1.2 * r, r}, {-1.2 * r, r}});
    case 3:
      return polygon({{0, -1.4 * r}, {1.4 * r, 0}, {0, 1.4 * r}, {-1.4 * r, 0}});
    case 4:
      return polygon({{-1.2 * r, -r}, {1.2 * r, -r}, {0, 1.2 * r}});
    case 5:
      return polygon({{-r / 3, -r},
                      {r / 3, -r},
                      {r / 3, -r / 3},
                      {r, -r / 3},
                      {r, r / 3},
                      {r / 3, r / 3},
                      {r / 3, r},
                      {-r / 3, r},
                      {-r / 3, r / 3},
                      {-r, r / 3},
                      {-r, -r / 3},
                      {-r / 3, -r / 3}});
    case 6:
      return polygon({{-r, -r}, {r, -r}, {-r, r}, {r, r}});
    default:
      return polygon({{-r / 2, -r}, {r / 2, -r}, {r, 0}, {r / 2, r}, {-r / 2, r}, {-r, 0}});
  }
}

/// A logarithmic scale from `low` to `high` on both axes.
struct ScatterScale {
  double low = 1;
  double high = 1;
  double part(double seconds) const { return std::log(seconds / low) / std::log(high / low); }
  double x(Seconds time) const { return kLeft + kSize * part(time.value); }
  double y(Seconds time) const { return kTop + kSize * (1 - part(time.value)); }
};

ScatterScale scale_of(const std::vector<ValidatedRun>& runs) {
  double low = std::numeric_limits<double>::infinity();
  double high = 0;
  const auto take = [&](Seconds time) {
    if (!(time > Seconds(0)) || !std::isfinite(time.value)) throw std::invalid_argument("a time is not above 0");
    low = std::min(low, time.value);
    high = std::max(high, time.value);
  };
  for (const ValidatedRun& run : runs) {
    take(run.times.predicted);
    take(run.times.measured);
  }
  return {low / kMargin, high * kMargin};
}

/// 1, 2 and 5 times the powers of ten inside the scale.
std::vector<double> ticks(const ScatterScale& scale) {
  std::vector<double> out;
  const int first = static_cast<int>(std::floor(std::log10(scale.low)));
  const int last = static_cast<int>(std::ceil(std::log10(scale.high)));
  const bool many = last - first > 4;
  for (int power = first; power <= last; ++power) {
    for (const double digit : {1.0, 2.0, 5.0}) {
      const double value = digit * std::pow(10.0, power);
      if (value >= scale.low && value <= scale.high && (digit == 1 || !many)) out.push_back(value);
    }
  }
  return out;
}

std::string line(double x1, double y1, double x2, double y2, const std::string& style) {
  return fmt::format("<line x1=\"{:.2f}\" y1=\"{:.2f}\" x2=\"{:.2f}\" y2=\"{:.2f}\" {}/>\n", x1, y1, x2, y2, style);
}

/// `words` are markup.
std::string text(double x, double y, const std::string& anchor, const std::string& words,
                 const std::string& more = "") {
  return fmt::format("<text x=\"{:.2f}\" y=\"{:.2f}\" text-anchor=\"{}\"{}>{}</text>\n", x, y, anchor, more, words);
}

std::string axes(const ScatterScale& scale) {
  std::string out;
  for (const double value : ticks(scale)) {
    const Seconds time(value);
    const std::string grid = "stroke=\"#dddddd\"";
    out += line(scale.x(time), kTop, scale.x(time), kTop + kSize, grid);
    out += line(kLeft, scale.y(time), kLeft + kSize, scale.y(time), grid);
    out += text(scale.x(time), kTop + kSize + 18, "middle", format_seconds(time));
    out += text(kLeft - 8, scale.y(time) + 4, "end", format_seconds(time));
  }
  // The band of 10 %: predicted / measured from 0.9 to 1.1.
  const double x0 = kLeft;
  const double x1 = kLeft + kSize;
  const auto y = [&](double seconds) { return kTop + kSize * (1 - scale.part(seconds)); };
  out += fmt::format(
      "<polygon clip-path=\"url(#square)\" points=\"{:.2f},{:.2f} {:.2f},{:.2f} {:.2f},{:.2f} {:.2f},{:.2f}\" "
      "fill=\"#999999\" fill-opacity=\"0.2\"/>\n",
      x0, y(scale.low / 1.1), x1, y(scale.high / 1.1), x1, y(scale.high / 0.9), x0, y(scale.low / 0.9));
  out += line(x0, kTop + kSize, x1, kTop, "stroke=\"#555555\"");
  out += fmt::format("<rect x=\"{}\" y=\"{}\" width=\"{}\" height=\"{}\" fill=\"none\" stroke=\"#555555\"/>\n", kLeft,
                     kTop, kSize, kSize);
  out += text(kLeft + kSize / 2, kTop + kSize + 44, "middle", "predicted step");
  out += text(18, kTop + kSize / 2, "middle", "measured step",
              fmt::format(" transform=\"rotate(-90 18 {:.2f})\"", kTop + kSize / 2));
  return out;
}

}  // namespace

std::string scatter_picture(const Validation& validation) {
  if (validation.runs.empty()) throw std::invalid_argument("no runs to draw");
  const ScatterScale scale = scale_of(validation.runs);
  std::vector<std::string> models;
  for (const ValidatedRun& run : validation.runs) {
    if (std::find(models.begin(), models.end(), run.model) == models.end()) models.push_back(run.model);
  }
  std::string out = fmt::format(
      "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{0}\" height=\"{1}\" viewBox=\"0 0 {0} {1}\" "
      "font-family=\"sans-serif\" font-size=\"12\">\n<title>Predicted and measured step times</title>\n"
      "<defs><clipPath id=\"square\"><rect x=\"{2}\" y=\"{3}\" width=\"{4}\" height=\"{4}\"/></clipPath></defs>\n"
      "<rect width=\"100%\" height=\"100%\" fill=\"#ffffff\"/>\n",
      kLeft + kSize + kLegend, std::max(kTop + kSize + kBottom, kTop + 22.0 * static_cast<double>(models.size() + 2)),
      kLeft, kTop, kSize);
  out += axes(scale);
  for (const ValidatedRun& run : validation.runs) {
    const auto model = static_cast<std::size_t>(std::find(models.begin(), models.end(), run.model) - models.begin());
    const double y = scale.y(run.times.measured);
    if (run.times.low && run.times.high && *run.times.low > Seconds(0)) {
      out += line(scale.x(*run.times.low), y, scale.x(*run.times.high), y,
                  fmt::format("stroke=\"{}\" clip-path=\"url(#square)\"", kColours.at(model % kColours.size())));
    }
    const std::string title = fmt::format("<title>{}: predicted {}, measured {}</title>", format::markup_text(run.name),
                                          format_seconds(run.times.predicted), format_seconds(run.times.measured));
    out += marker(model, scale.x(run.times.predicted), y, title);
  }
  const double x = kLeft + kSize + 20;
  for (std::size_t i = 0; i < models.size(); ++i) {
    const double y = kTop + 10 + 22 * static_cast<double>(i);
    out += marker(i, x, y, "");
    out += text(x + 14, y + 4, "start", format::markup_text(models[i], kLongestName));
  }
  out += text(x - 6, kTop + 14 + 22 * static_cast<double>(models.size()), "start", "grey: within 10 %");
  return out + "</svg>\n";
}

}  // namespace stagecraft::interchange
