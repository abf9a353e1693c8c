#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <set>

#include "costmodel/index.h"
#include "costmodel/plan.h"
#include "costmodel/prediction/memory.h"
#include "costmodel/report/pictures.h"
#include "costmodel/text/units_text.h"

namespace stagecraft::report {
namespace {

constexpr double kBoxWide = 168;
constexpr double kBoxHigh = 34;
constexpr double kStep = 46;  // from one box to the next below it
constexpr double kLane = 7;
constexpr double kEdge = 10;  // between a frame and what is in it

std::string paint_of(const Layer& layer, int stage) {
  if (is_input(layer) || stage < 0) return "class=\"box plain\"";
  return "class=\"box\" fill=\"" + stage_colour(stage) + "\"";
}

Seconds both(const Layer& layer) { return layer.forward.median + layer.backward.median; }

std::string name_of(const Layer& layer) { return layer.name.empty() ? layer.id : layer.name; }

/// Vertical parts of arrows in one gap between columns, each in a lane of its own where they overlap.
class Gap {
 public:
  /// The lane of an arrow of layer `source`; arrows of one source share one.
  int lane(int source, double from, double to) {
    const double low = std::min(from, to) - 4;
    const double high = std::max(from, to) + 4;
    for (std::size_t l = 0; l < lanes_.size(); ++l) {
      const bool free = std::ranges::all_of(
          lanes_[l], [&](const Part& part) { return part.source == source || part.high < low || part.low > high; });
      if (!free) continue;
      lanes_[l].push_back({source, low, high});
      return to_int(l);
    }
    lanes_.push_back({{source, low, high}});
    return to_int(lanes_.size()) - 1;
  }
  [[nodiscard]] double width() const { return kLane * static_cast<double>(lanes_.size()); }

 private:
  struct Part {
    int source;
    double low;
    double high;
  };
  std::vector<std::vector<Part>> lanes_;
};

struct LayerColumn {
  int stage = -1;
  std::vector<int> layers;
  double x = 0;
};

/// An arrow between two boxes: out of the right side of `source`, down or up a lane of the gap after its column; to a
/// column further on, through the channel above and down a lane of the gap before it.
struct Route {
  int source = 0;
  int destination = 0;
  bool straight = false;  ///< to the box just below
  int lane = 0;           ///< in the gap after the source's column
  int channel = -1;       ///< lane above the frames; -1: none
  int last = -1;          ///< lane in the gap before the destination's column
};

class PictureLayout {
 public:
  PictureLayout(std::string name, const Graph& graph, const Plan* plan)
      : graph_(graph),
        plan_(plan),
        out_(std::move(name), "Layers of the model"),
        stage_(stage_of_layers(graph, plan)) {}

  Picture picture() {
    make_columns();
    route();
    place();
    frames();
    arrows();
    for (const LayerColumn& column : columns_) {
      for (const int layer : column.layers) box(layer);
    }
    const double width = columns_.back().x + kBoxWide + 24 + after_.back().width() + 20;
    std::string caption =
        "Each box is a layer, in the model's order from top to bottom and left to right: forward + "
        "backward time and parameters of one microbatch on one device.";
    if (plan_ != nullptr) caption += " Frames and colours are stages; bold arrows cross stages.";
    return out_.finish(std::max(width, 420.0), bottom_ + 16, caption);
  }

 private:
  void make_columns() {
    std::map<int, std::vector<int>> by_stage;
    for (std::size_t i = 0; i < graph_.layers.size(); ++i) {
      if (is_input(graph_.layers[i])) by_stage[-2].push_back(to_int(i));
    }
    for (const int layer : layer_list(graph_)) by_stage[stage_[to_index(layer)]].push_back(layer);
    const std::size_t all = graph_.layers.size();
    const std::size_t longest = all <= 60 ? 14 : all <= 200 ? 22 : 40;
    column_of_.assign(all, 0);
    row_of_.assign(all, 0);
    for (const auto& [stage, layers] : by_stage) {
      const std::size_t parts = (layers.size() + longest - 1) / longest;
      for (std::size_t p = 0; p < parts; ++p) {
        LayerColumn& column = columns_.emplace_back();
        column.stage = stage;
        for (std::size_t i = layers.size() * p / parts; i < layers.size() * (p + 1) / parts; ++i) {
          column_of_[to_index(layers[i])] = columns_.size() - 1;
          row_of_[to_index(layers[i])] = to_int(column.layers.size());
          column.layers.push_back(layers[i]);
        }
      }
    }
    after_.resize(columns_.size());
  }

  double middle(int layer) const { return kStep * row_of_[to_index(layer)] + kBoxHigh / 2; }

  void route() {
    std::set<std::pair<int, int>> pairs;
    for (const Edge& edge : graph_.edges) pairs.emplace(edge.source, edge.destination);
    for (const auto& [source, destination] : pairs) {
      Route r{.source = source, .destination = destination};
      const std::size_t from = column_of_[to_index(source)];
      const std::size_t to = column_of_[to_index(destination)];
      if (from == to && row_of_[to_index(destination)] == row_of_[to_index(source)] + 1) {
        r.straight = true;
      } else if (from == to || to == from + 1) {
        r.lane = after_[from].lane(source, middle(source), middle(destination));
      } else {
        r.channel = channel_.lane(source, static_cast<double>(from), static_cast<double>(to));
        r.lane = after_[from].lane(source, -kStep, middle(source));
        // The gap before a column is that after the column before it.
        r.last = to > 0 ? after_[to - 1].lane(source, -kStep, middle(destination)) : 0;
      }
      routes_.push_back(r);
    }
  }

  void place() {
    channel_top_ = 14;
    top_ = channel_top_ + channel_.width() + (plan_ != nullptr ? 62 : 24);
    double x = 14;
    std::size_t rows = 0;
    for (std::size_t c = 0; c < columns_.size(); ++c) {
      if (c == 0 || columns_[c].stage != columns_[c - 1].stage) x += kEdge;
      columns_[c].x = x;
      x += kBoxWide + kEdge + after_[c].width() + 22;
      rows = std::max(rows, columns_[c].layers.size());
    }
    bottom_ = top_ + kStep * static_cast<double>(rows) + 6;
  }

  double y_of(int layer) const { return top_ + middle(layer); }
  double lane_x(std::size_t column, int lane) const {
    return columns_[column].x + kBoxWide + kEdge + 6 + kLane * static_cast<double>(lane);
  }

  void frames() {
    if (plan_ == nullptr) return;
    for (std::size_t c = 0; c < columns_.size();) {
      std::size_t last = c;
      while (last + 1 < columns_.size() && columns_[last + 1].stage == columns_[c].stage) ++last;
      const double x = columns_[c].x - kEdge;
      const double width = columns_[last].x + kBoxWide + kEdge - x;
      const int stage = columns_[c].stage;
      if (stage >= 0) {
        out_.rect(x, top_ - 46, width, bottom_ - top_ + 46,
                  "class=\"box\" fill=\"" + stage_colour(stage) + "\" fill-opacity=\"0.16\"", "", "rx=\"6\"");
        const Stage& s = plan_->stages[to_index(stage)];
        Seconds time;
        std::vector<const Layer*> layers;
        for (std::size_t i = 0; i < stage_.size(); ++i) {
          if (stage_[i] != stage) continue;
          time += both(graph_.layers[i]);
          layers.push_back(&graph_.layers[i]);
        }
        out_.text(columns_[c].x, top_ - 28, "start",
                  fitted(s.devices.size() > 1 ? fmt::format("stage {}, {} replicas", stage, s.devices.size())
                                              : fmt::format("stage {}", stage),
                         width - 2 * kEdge, 12),
                  "strong", 12);
        out_.text(columns_[c].x, top_ - 12, "start",
                  fitted(fmt::format("{}, {}", format_seconds(time), format_bytes(held_parameter_bytes(layers))),
                         width - 2 * kEdge, 10),
                  "soft", 10);
      } else {
        out_.text(columns_[c].x, top_ - 12, "start", "inputs", "soft", 10);
      }
      c = last + 1;
    }
  }

  void box(int layer) {
    const Layer& l = graph_.layers[to_index(layer)];
    const double x = columns_[column_of_[to_index(layer)]].x;
    const double y = y_of(layer) - kBoxHigh / 2;
    out_.rect(x, y, kBoxWide, kBoxHigh, paint_of(l, stage_[to_index(layer)]),
              name_of(l) + (l.kind.empty() ? "" : ", " + l.kind) + ": sends " + format_bytes(activation_bytes(l)),
              "rx=\"4\"");
    out_.text(x + 8, y + 14, "start", fitted(name_of(l), kBoxWide - 16, 11), "dark", 11);
    std::string facts = is_input(l) ? "input" : both(l) > Seconds(0) ? format_seconds(both(l)) : l.kind;
    if (l.parameter_bytes > Bytes(0)) facts += ", " + format_bytes(l.parameter_bytes);
    out_.text(x + 8, y + 27, "start", fitted(facts, kBoxWide - 16, 10), "dark", 10);
  }

  void tip(double x, double y, double dx, double dy) {
    // A triangle whose point is at x, y and that looks along dx, dy.
    out_.path(fmt::format("M{:.2f},{:.2f} L{:.2f},{:.2f} L{:.2f},{:.2f} Z", x, y, x - 6 * dx - 3.5 * dy,
                          y - 6 * dy - 3.5 * dx, x - 6 * dx + 3.5 * dy, y - 6 * dy + 3.5 * dx),
              "class=\"tip\"");
  }

  void arrows() {
    for (const Route& r : routes_) {
      const std::size_t from = column_of_[to_index(r.source)];
      const std::size_t to = column_of_[to_index(r.destination)];
      const int a = stage_[to_index(r.source)];
      const int b = stage_[to_index(r.destination)];
      const std::string style = a >= 0 && a != b ? "class=\"cross\"" : "class=\"edge\"";
      const std::string said =
          name_of(graph_.layers[to_index(r.source)]) + " to " + name_of(graph_.layers[to_index(r.destination)]);
      const double right = columns_[from].x + kBoxWide;
      const double y0 = y_of(r.source);
      const double y1 = y_of(r.destination);
      if (r.straight) {
        const double x = columns_[from].x + kBoxWide / 2;
        out_.path(fmt::format("M{:.2f},{:.2f} V{:.2f}", x, y0 + kBoxHigh / 2, y1 - kBoxHigh / 2 - 4), style, said);
        tip(x, y1 - kBoxHigh / 2, 0, 1);
        continue;
      }
      // Arrows leave a little below the middle and arrive a little above it, so that both can be seen.
      const double leave = y0 + 7;
      const double arrive = y1 - 7;
      const double lane = lane_x(from, r.lane);
      std::string line = fmt::format("M{:.2f},{:.2f} H{:.2f}", right, leave, lane);
      if (r.channel >= 0) {
        const double above = channel_top_ + kLane * r.channel;
        line += fmt::format(" V{:.2f} H{:.2f}", above, lane_x(to - 1, r.last));
      }
      line += fmt::format(" V{:.2f}", arrive);
      const bool back = from == to;
      const double end = back ? right : columns_[to].x;
      line += fmt::format(" H{:.2f}", end + (back ? 4 : -4));
      out_.path(line, style, said);
      tip(end, arrive, back ? -1 : 1, 0);
    }
  }

  const Graph& graph_;
  const Plan* plan_;
  Drawing out_;
  std::vector<int> stage_;
  std::vector<LayerColumn> columns_;
  std::vector<std::size_t> column_of_;
  std::vector<int> row_of_;
  std::vector<Gap> after_;  // by column
  Gap channel_;
  std::vector<Route> routes_;
  double channel_top_ = 0;
  double top_ = 0;
  double bottom_ = 0;
};

}  // namespace

Picture layout_picture(const std::string& name, const Graph& graph, const Plan* plan) {
  return PictureLayout(name, graph, plan).picture();
}

Picture layer_bars_picture(const std::string& name, const Graph& graph, const Plan* plan) {
  constexpr std::size_t kMost = 250;
  constexpr double kLeft = 210;
  constexpr double kPanel = 185;
  constexpr double kBetween = 22;
  constexpr double kRow = 16;
  Drawing out(name, "Costs of each layer");
  const std::vector<int> stages = stage_of_layers(graph, plan);
  std::vector<int> layers = layer_list(graph);
  const std::size_t all = layers.size();
  if (all > kMost) {
    std::vector<int> longest = layers;
    std::ranges::stable_sort(
        longest, [&](int a, int b) { return both(graph.layers[to_index(a)]) > both(graph.layers[to_index(b)]); });
    const std::set<int> kept(longest.begin(), longest.begin() + kMost);
    std::erase_if(layers, [&](int layer) { return !kept.contains(layer); });
  }
  Seconds most_time;
  Bytes most_activation;
  Bytes most_parameters;
  for (const int layer : layers) {
    const Layer& l = graph.layers[to_index(layer)];
    for (const Timing& t : {l.forward, l.backward})
      most_time = std::max(most_time, t.median + t.spread.value_or(Seconds(0)), std::less<>());
    most_activation = std::max(most_activation, activation_bytes(l), std::less<>());
    most_parameters = std::max(most_parameters, l.parameter_bytes, std::less<>());
  }
  const Axis times = time_axis(most_time, 3);
  const Axis activations = bytes_axis(most_activation, 3);
  const Axis parameters = bytes_axis(most_parameters, 3);
  struct Panel {
    std::string title;
    const Axis* axis;
  };
  const std::vector<Panel> panels{
      {"forward", &times}, {"backward", &times}, {"activations", &activations}, {"parameters", &parameters}};
  const double top = 34;
  const double bottom = top + kRow * static_cast<double>(layers.size()) + 4;
  const auto left = [&](std::size_t p) { return kLeft + (kPanel + kBetween) * static_cast<double>(p); };
  for (std::size_t p = 0; p < panels.size(); ++p) {
    const Axis& axis = *panels[p].axis;
    out.text(left(p), top - 12, "start", panels[p].title + ", " + axis.unit, "strong");
    for (const double tick : axis.ticks) {
      const double x = left(p) + kPanel * tick / axis.end;
      out.line(x, top, x, bottom, "grid");
      out.text(x, bottom + 15, "middle", axis.label(tick), "soft", 10);
    }
  }
  int stage = -1;
  for (std::size_t i = 0; i < layers.size(); ++i) {
    const Layer& l = graph.layers[to_index(layers[i])];
    const int s = stages[to_index(layers[i])];
    const double y = top + 2 + kRow * static_cast<double>(i);
    if (s != stage && s >= 0) {
      if (stage >= 0) out.line(8, y - 1, left(3) + kPanel, y - 1, "axis");
      out.text(8, y + 11, "start", fmt::format("stage {}", s), "strong", 10);
      stage = s;
    }
    out.text(kLeft - 8, y + 11, "end", fitted(name_of(l), plan == nullptr ? kLeft - 20 : kLeft - 72, 10), "ink", 10);
    const auto bar = [&](std::size_t p, double value, const std::string& tooltip) {
      out.rect(left(p), y + 1, kPanel * value / panels[p].axis->end, kRow - 4, paint_of(l, s < 0 ? 0 : s), tooltip);
    };
    for (const std::size_t p : {0U, 1U}) {
      const Timing& t = p == 0 ? l.forward : l.backward;
      std::string tooltip = name_of(l) + ", " + panels[p].title + ": " + format_seconds(t.median);
      if (t.spread) tooltip += " +- " + format_seconds(*t.spread);
      bar(p, t.median.value, tooltip);
      if (!t.spread || !(*t.spread > Seconds(0))) continue;
      const double scale = kPanel / times.end;
      const double low = left(p) + scale * std::max(0.0, (t.median - *t.spread).value);
      const double high = left(p) + scale * (t.median + *t.spread).value;
      const double middle = y + kRow / 2 - 1;
      out.path(fmt::format("M{0:.2f},{2:.2f} H{1:.2f} M{0:.2f},{3:.2f} V{4:.2f} M{1:.2f},{3:.2f} V{4:.2f}", low, high,
                           middle, middle - 3, middle + 3),
               "class=\"whisker\"");
    }
    bar(2, static_cast<double>(activation_bytes(l).value),
        name_of(l) + ", activations: " + format_bytes(activation_bytes(l)));
    bar(3, static_cast<double>(l.parameter_bytes.value),
        name_of(l) + ", parameters: " + format_bytes(l.parameter_bytes));
  }
  for (std::size_t p = 0; p < panels.size(); ++p) {
    out.line(left(p), top, left(p), bottom, "axis");
    out.line(left(p), bottom, left(p) + kPanel, bottom, "axis");
  }
  std::string caption =
      "One microbatch on one device. Whiskers are the median absolute deviation where it was measured.";
  if (layers.size() < all) caption += fmt::format(" The {} layers with the longest times, of {}.", layers.size(), all);
  return out.finish(left(3) + kPanel + 24, bottom + 26, caption);
}

}  // namespace stagecraft::report
