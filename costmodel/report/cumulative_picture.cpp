#include <fmt/format.h>

#include <algorithm>
#include <functional>
#include <vector>

#include "costmodel/index.h"
#include "costmodel/plan.h"
#include "costmodel/prediction/memory.h"
#include "costmodel/report/pictures.h"
#include "costmodel/text/units_text.h"

namespace stagecraft::report {
namespace {

constexpr double kLeft = 86;
constexpr double kWide = 720;
constexpr double kHigh = 150;
constexpr double kHeader = 38;      // title and shares above a panel
constexpr double kBetween = 16;     // below a panel
constexpr std::size_t kNames = 48;  // of layers, at most
constexpr double kNameLength = 130;

/// A cost that adds up over the layers.
struct SummedCost {
  std::string title;
  std::function<double(const Layer&, Bytes parameters)> of;  ///< `parameters`: first_held_bytes
  std::function<std::string(double)> text;
  std::function<Axis(double)> axis;
};

std::vector<SummedCost> summed_costs(const Graph& graph) {
  const auto bytes_text = [](double value) { return format_bytes(Bytes(static_cast<std::int64_t>(value))); };
  const auto bytes = [](double most) { return bytes_axis(Bytes(static_cast<std::int64_t>(most)), 5); };
  std::vector<SummedCost> out;
  if (has_times(graph)) {
    out.push_back({"forward + backward",
                   [](const Layer& layer, Bytes) { return (layer.forward.median + layer.backward.median).value; },
                   [](double value) { return format_seconds(Seconds(value)); },
                   [](double most) { return time_axis(Seconds(most), 5); }});
  }
  out.push_back({"parameters", [](const Layer&, Bytes parameters) { return static_cast<double>(parameters.value); },
                 bytes_text, bytes});
  out.push_back({"activations",
                 [](const Layer& layer, Bytes) { return static_cast<double>(activation_bytes(layer).value); },
                 bytes_text, bytes});
  return out;
}

/// Consecutive layers of a stage: those from number `begin` on, until `end`.
struct StageRun {
  int stage = 0;
  std::size_t begin = 0;
  std::size_t end = 0;
};

}  // namespace

Picture cumulative_picture(const std::string& name, const Graph& graph, const Plan* plan) {
  Drawing out(name, "Costs added up over the layers");
  const std::vector<int> stages = stage_of_layers(graph, plan);
  std::vector<int> layers = layer_list(graph);
  const auto stage = [&](int layer) { return stages[to_index(layer)]; };
  const bool in_order = std::ranges::is_sorted(layers, {}, stage);
  // Parallel branches in different stages: stage by stage, so that a stage is one piece.
  if (!in_order) std::ranges::stable_sort(layers, {}, stage);
  std::vector<StageRun> runs;
  for (std::size_t i = 0; i < layers.size(); ++i) {
    if (runs.empty() || runs.back().stage != stage(layers[i])) runs.push_back({stage(layers[i]), i, i});
    runs.back().end = i + 1;
  }
  const auto count = static_cast<double>(layers.size());
  const auto x = [&](std::size_t layer) { return kLeft + kWide * static_cast<double>(layer) / count; };
  double top = 20;
  if (plan != nullptr) {
    for (const StageRun& run : runs) {
      const double room = x(run.end) - x(run.begin) - 4;
      const std::string number = std::to_string(run.stage);
      const std::string label = text_width("stage " + number, 11) <= room ? "stage " + number : number;
      if (text_width(label, 11) <= room) out.text((x(run.begin) + x(run.end)) / 2, top, "middle", label, "strong");
    }
  }
  std::vector<const Layer*> ordered;
  for (const int layer : layers) ordered.push_back(&graph.layers[to_index(layer)]);
  const std::vector<Bytes> held = first_held_bytes(ordered);
  for (const SummedCost& cost : summed_costs(graph)) {
    top += kHeader;
    std::vector<double> sums{0};
    for (std::size_t i = 0; i < layers.size(); ++i) sums.push_back(sums.back() + cost.of(*ordered[i], held[i]));
    const double total = sums.back();
    const Axis axis = cost.axis(total);
    const auto y = [&](double value) { return top + kHigh * (1 - axis.share(value)); };
    out.text(kLeft, top - 20, "start", cost.title + ", " + axis.unit, "strong");
    for (const StageRun& run : runs) {
      if (plan == nullptr) break;
      const double value = sums[run.end] - sums[run.begin];
      const double share = total > 0 ? value / total : 0;
      const std::string what =
          fmt::format("stage {}: {} of {}, {:.1f} %", run.stage, cost.text(value), cost.text(total), share * 100);
      out.rect(x(run.begin), top, x(run.end) - x(run.begin), kHigh,
               run.stage % 2 == 0 ? "class=\"paper\"" : "class=\"band\"", what);
      const std::string label = fmt::format("{:.0f} %", share * 100);
      if (text_width(label, 10) <= x(run.end) - x(run.begin) - 4)
        out.text((x(run.begin) + x(run.end)) / 2, top - 5, "middle", label, "soft", 10);
    }
    for (const double tick : axis.ticks) {
      out.line(kLeft, y(tick), kLeft + kWide, y(tick), "grid");
      out.text(kLeft - 8, y(tick) + 4, "end", axis.label(tick), "soft", 10);
    }
    for (std::size_t r = 1; r < runs.size(); ++r) out.line(x(runs[r].begin), top, x(runs[r].begin), top + kHigh, "cut");
    std::string points;
    for (std::size_t i = 0; i < sums.size(); ++i)
      points += fmt::format("{}{:.2f},{:.2f}", i == 0 ? "M" : " L", x(i), y(sums[i]));
    out.path(points, fmt::format("fill=\"none\" stroke=\"{}\" stroke-width=\"1.8\"", series_colour(0)));
    out.rect(kLeft, top, kWide, kHigh, "class=\"axis\"");
    top += kHigh + kBetween;
  }
  const double bottom = top - kBetween;
  const std::size_t every = (layers.size() + kNames - 1) / kNames;
  double longest = 0;
  for (std::size_t i = 0; i < layers.size(); i += every) {
    const Layer& layer = graph.layers[to_index(layers[i])];
    const std::string label = fitted(layer.name.empty() ? layer.id : layer.name, kNameLength, 10);
    const double at = (x(i) + x(i + 1)) / 2;
    out.line(at, bottom, at, bottom + 4, "axis");
    out.text(at + 3.5, bottom + 8, "end", label, "soft", 10,
             fmt::format("transform=\"rotate(-90 {:.2f} {:.2f})\"", at + 3.5, bottom + 8));
    longest = std::max(longest, text_width(label, 10));
  }
  const double title = bottom + longest + 28;
  out.text(kLeft + kWide / 2, title, "middle", in_order ? "layers, in the model's order" : "layers, stage by stage");
  std::string caption = "Sums over the first layers, for one microbatch on one device.";
  if (plan != nullptr) caption += " Dashed lines are the cuts between stages; percentages are each stage's share.";
  if (!in_order) caption += " Layers of different stages alternate in the model, so they are shown stage by stage.";
  if (every > 1) caption += fmt::format(" Every {} layers, one is named.", every);
  return out.finish(kLeft + kWide + 24, title + 12, caption);
}

}  // namespace stagecraft::report
