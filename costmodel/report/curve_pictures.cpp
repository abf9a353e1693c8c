#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <limits>
#include <stdexcept>
#include <vector>

#include "costmodel/index.h"
#include "costmodel/plan.h"
#include "costmodel/prediction/memory.h"
#include "costmodel/report/pictures.h"
#include "costmodel/text/units_text.h"

namespace stagecraft::report {
namespace {

constexpr double kLeft = 86;
constexpr double kTop = 20;

/// A logarithmic scale.
struct CurveScale {
  double low = 1;
  double high = 10;
  double begin = 0;  ///< pixel of `low`
  double end = 1;    ///< pixel of `high`
  [[nodiscard]] double at(double value) const {
    return begin + (end - begin) * std::log(value / low) / std::log(high / low);
  }
};

/// Powers of `base` on the scale, so few that they fit.
std::vector<double> powers(const CurveScale& scale, double base) {
  const int first = static_cast<int>(std::ceil(std::log(scale.low) / std::log(base) - 1e-9));
  const int last = static_cast<int>(std::floor(std::log(scale.high) / std::log(base) + 1e-9));
  const int every = std::max(1, (last - first + 1 + 7) / 8);
  std::vector<double> out;
  for (int i = first; i <= last; i += every) out.push_back(std::pow(base, i));
  return out;
}

/// Ticks at 1, 2 and 5 times powers of ten, or at powers alone if those are many; more between if those are few.
std::vector<double> decimal_ticks(const CurveScale& scale) {
  if (scale.high / scale.low > 1e3) return powers(scale, 10);
  const bool narrow = scale.high / scale.low < 6;
  std::vector<double> out;
  for (int power = static_cast<int>(std::floor(std::log10(scale.low))); power <= std::ceil(std::log10(scale.high));
       ++power) {
    for (const double digit : {1.0, 1.5, 2.0, 2.5, 3.0, 4.0, 5.0, 6.0, 8.0}) {
      if (!narrow && digit != 1 && digit != 2 && digit != 5) continue;
      const double value = digit * std::pow(10.0, power);
      if (value >= scale.low && value <= scale.high) out.push_back(value);
    }
  }
  return out;
}

std::string short_time(double seconds) {
  for (const auto& [factor, unit] :
       std::initializer_list<std::pair<double, const char*>>{{1, "s"}, {1e-3, "ms"}, {1e-6, "µs"}, {1e-9, "ns"}}) {
    if (seconds >= factor * (1 - 1e-9)) return fmt::format("{:.4g} {}", seconds / factor, unit);
  }
  return fmt::format("{:.3g} s", seconds);
}

std::string short_bytes(double bytes) {
  for (const auto& [factor, unit] :
       std::initializer_list<std::pair<double, const char*>>{{0x1p30, "GiB"}, {0x1p20, "MiB"}, {0x1p10, "KiB"}}) {
    if (bytes >= factor) return fmt::format("{:.4g} {}", bytes / factor, unit);
  }
  return fmt::format("{:.4g} B", bytes);
}

constexpr double kLossWide = 720;
constexpr double kLossHigh = 260;
/// Points of a curve, at most: one for each two pixels.
constexpr std::size_t kPoints = 360;

struct LossPoint {
  double step = 0;  ///< number of the step, from 1; the last one of several
  double loss = 0;  ///< mean of the finite ones; NaN if there is none
};

std::vector<LossPoint> loss_points(const Measurement& run) {
  const std::size_t count = std::min(run.losses.size(), run.timeline.steps.size());
  const std::size_t every = std::max<std::size_t>(1, (count + kPoints - 1) / kPoints);
  std::vector<LossPoint> out;
  for (std::size_t first = 0; first < count; first += every) {
    const std::size_t end = std::min(first + every, count);
    double sum = 0;
    int finite = 0;
    for (std::size_t i = first; i < end; ++i) {
      if (!std::isfinite(run.losses[i])) continue;
      sum += run.losses[i];
      ++finite;
    }
    out.push_back({static_cast<double>(run.timeline.steps[end - 1].step) + 1,
                   finite > 0 ? sum / finite : std::numeric_limits<double>::quiet_NaN()});
  }
  return out;
}

}  // namespace

Picture link_picture(const std::string& name, const Topology& topology) {
  Drawing out(name, "Time of a message");
  constexpr double kWide = 620;
  constexpr double kHigh = 340;
  double low = std::numeric_limits<double>::infinity();
  double high = 0;
  double most = 0;
  double least = std::numeric_limits<double>::infinity();
  for (const Level& level : topology.levels) {
    for (const CurvePoint& point : level.link.send_receive.points) {
      if (point.bytes.value < 1) continue;
      least = std::min(least, static_cast<double>(point.bytes.value));
      most = std::max(most, static_cast<double>(point.bytes.value));
    }
  }
  if (most == 0) {
    least = 0x1p10;
    most = 0x1p26;
  }
  most = std::max(most, 4 * least);
  const auto line_time = [](const Link& link, double bytes) {
    return link.latency.value + bytes / link.bandwidth.value;
  };
  for (const Level& level : topology.levels) {
    for (const double bytes : {least, most}) {
      low = std::min(low, line_time(level.link, bytes));
      high = std::max(high, line_time(level.link, bytes));
    }
    for (const CurvePoint& point : level.link.send_receive.points) {
      if (point.bytes.value < 1) continue;
      low = std::min(low, point.time.value);
      high = std::max(high, point.time.value);
    }
  }
  const CurveScale bytes{least / 1.3, most * 1.3, kLeft, kLeft + kWide};
  const CurveScale times{low / 1.3, high * 1.3, kTop + kHigh, kTop};
  for (const double tick : powers(bytes, 4)) {
    out.line(bytes.at(tick), kTop, bytes.at(tick), kTop + kHigh, "grid");
    out.text(bytes.at(tick), kTop + kHigh + 16, "middle", short_bytes(tick), "soft", 10);
  }
  for (const double tick : decimal_ticks(times)) {
    out.line(kLeft, times.at(tick), kLeft + kWide, times.at(tick), "grid");
    out.text(kLeft - 8, times.at(tick) + 4, "end", short_time(tick), "soft", 10);
  }
  out.rect(kLeft, kTop, kWide, kHigh, "class=\"axis\"");
  for (std::size_t l = 0; l < topology.levels.size(); ++l) {
    const Level& level = topology.levels[l];
    const bool measured = level.link.origin == LinkOrigin::Measured;
    std::string points;
    for (int i = 0; i <= 80; ++i) {
      const double b = least * std::pow(most / least, i / 80.0);
      points += fmt::format("{}{:.2f},{:.2f}", i == 0 ? "M" : " L", bytes.at(b), times.at(line_time(level.link, b)));
    }
    out.path(points, fmt::format("fill=\"none\" stroke=\"{}\" stroke-width=\"1.6\"{}", series_colour(l),
                                 measured ? "" : " stroke-dasharray=\"6 4\""));
    for (const CurvePoint& point : level.link.send_receive.points) {
      if (point.bytes.value < 1) continue;
      out.mark(l, bytes.at(static_cast<double>(point.bytes.value)), times.at(point.time.value),
               level.name + ": " + format_bytes(point.bytes) + " in " + format_seconds(point.time));
    }
    const double y = kTop + 12 + 38 * static_cast<double>(l);
    const double x = kLeft + kWide + 24;
    out.mark(l, x, y, "");
    out.text(x + 12, y + 4, "start", fitted(level.name + (measured ? "" : " (declared)"), 200, 11), "strong");
    out.text(
        x + 12, y + 19, "start",
        fmt::format("{} + bytes / {:.3g} GB/s", format_seconds(level.link.latency), level.link.bandwidth.value / 1e9),
        "soft", 10);
  }
  out.text(kLeft + kWide / 2, kTop + kHigh + 36, "middle", "bytes of the message");
  out.text(20, kTop + kHigh / 2, "middle", "time", "ink", 11,
           fmt::format("transform=\"rotate(-90 20 {:.0f})\"", kTop + kHigh / 2));
  const double height = std::max(kTop + kHigh + 48, kTop + 38.0 * static_cast<double>(topology.levels.size()) + 10);
  return out.finish(kLeft + kWide + 250, height,
                    "Marks are measured times, lines are latency + bytes / bandwidth; both axes are logarithmic.");
}

Picture validation_picture(const std::string& name, const Validation& validation) {
  if (validation.runs.empty()) throw std::invalid_argument("no runs to draw");
  Drawing out(name, "Predicted and measured steps");
  constexpr double kSize = 420;
  double low = std::numeric_limits<double>::infinity();
  double high = 0;
  std::vector<std::string> models;
  for (const ValidatedRun& run : validation.runs) {
    for (const Seconds time : {run.times.predicted, run.times.measured}) {
      if (!(time > Seconds(0)) || !std::isfinite(time.value)) throw std::invalid_argument("a time is not above 0");
      low = std::min(low, time.value);
      high = std::max(high, time.value);
    }
    if (std::ranges::find(models, run.model) == models.end()) models.push_back(run.model);
  }
  const CurveScale across{low / 1.25, high * 1.25, kLeft, kLeft + kSize};
  const CurveScale up{low / 1.25, high * 1.25, kTop + kSize, kTop};
  out.clip(kLeft, kTop, kSize, kSize);
  for (const double tick : decimal_ticks(across)) {
    out.line(across.at(tick), kTop, across.at(tick), kTop + kSize, "grid");
    out.line(kLeft, up.at(tick), kLeft + kSize, up.at(tick), "grid");
    out.text(across.at(tick), kTop + kSize + 16, "middle", short_time(tick), "soft", 10);
    out.text(kLeft - 8, up.at(tick) + 4, "end", short_time(tick), "soft", 10);
  }
  const std::string clipped = "clip-path=\"url(#" + out.name() + "-clip)\"";
  const double x1 = kLeft + kSize;
  out.path(fmt::format("M{0:.2f},{1:.2f} L{2:.2f},{3:.2f} L{2:.2f},{4:.2f} L{0:.2f},{5:.2f} Z", kLeft,
                       up.at(across.low / 1.1), x1, up.at(across.high / 1.1), up.at(across.high / 0.9),
                       up.at(across.low / 0.9)),
           "fill=\"#888\" fill-opacity=\"0.2\" " + clipped);
  out.line(kLeft, kTop + kSize, x1, kTop, "axis");
  out.rect(kLeft, kTop, kSize, kSize, "class=\"axis\"");
  for (const ValidatedRun& run : validation.runs) {
    const auto model = to_index(std::ranges::find(models, run.model) - models.begin());
    const double y = up.at(run.times.measured.value);
    if (run.times.low && run.times.high && *run.times.low > Seconds(0)) {
      out.path(
          fmt::format("M{:.2f},{:.2f} H{:.2f}", across.at(run.times.low->value), y, across.at(run.times.high->value)),
          fmt::format("fill=\"none\" stroke=\"{}\" {}", series_colour(model), clipped));
    }
    out.mark(model, across.at(run.times.predicted.value), y,
             run.name + ": predicted " + format_seconds(run.times.predicted) + ", measured " +
                 format_seconds(run.times.measured));
  }
  for (std::size_t m = 0; m < models.size(); ++m) {
    const double y = kTop + 12 + 20 * static_cast<double>(m);
    out.mark(m, x1 + 24, y, "");
    out.text(x1 + 36, y + 4, "start", fitted(models[m], 170, 11));
  }
  out.text(x1 + 18, kTop + 16 + 20 * static_cast<double>(models.size()), "start", "grey band: within 10 %", "soft");
  out.text(kLeft + kSize / 2, kTop + kSize + 36, "middle", "predicted step");
  out.text(20, kTop + kSize / 2, "middle", "measured step", "ink", 11,
           fmt::format("transform=\"rotate(-90 20 {:.0f})\"", kTop + kSize / 2));
  return out.finish(x1 + 220, std::max(kTop + kSize + 48, kTop + 20.0 * static_cast<double>(models.size()) + 30),
                    "Each mark is a run, each line its predicted 90 % interval; on the diagonal both are equal.");
}

Picture loss_picture(const std::string& name, const std::vector<NamedLosses>& runs) {
  Drawing out(name, "Loss of each step");
  std::vector<std::vector<LossPoint>> curves;
  double least = std::numeric_limits<double>::infinity();
  double most = -least;
  double first = least;
  double last = 1;
  bool joined = false;
  for (const NamedLosses& named : runs) {
    curves.push_back(loss_points(*named.run));
    joined = joined || curves.back().size() < named.run->losses.size();
    for (const LossPoint& point : curves.back()) {
      first = std::min(first, point.step);
      last = std::max(last, point.step);
      if (std::isnan(point.loss)) continue;
      least = std::min(least, point.loss);
      most = std::max(most, point.loss);
    }
  }
  if (!(least <= most)) least = most = 0;
  if (!(first <= last)) first = last;
  // Losses below 0 get an axis that is moved up by the least of them.
  const double shift = std::min(0.0, least);
  const Axis losses = number_axis(least - shift, most - shift, 5);
  const auto x = [&](double step) { return kLeft + (last > first ? kLossWide * (step - first) / (last - first) : 0); };
  const auto y = [&](double loss) { return kTop + kLossHigh * (1 - losses.share(loss - shift)); };
  for (const double tick : losses.ticks) {
    out.line(kLeft, y(tick + shift), kLeft + kLossWide, y(tick + shift), "grid");
    out.text(kLeft - 8, y(tick + shift) + 4, "end", fmt::format("{:.4g}", tick + shift), "soft", 10);
  }
  const int between = last - first >= 4 ? 4 : 1;
  for (int i = 0; i <= between; ++i) {
    const double step = std::round(first + (last - first) * i / between);
    if (i > 0 && !(last > first)) break;
    out.line(x(step), kTop + kLossHigh, x(step), kTop + kLossHigh + 4, "axis");
    out.text(x(step), kTop + kLossHigh + 16, i == between ? "end" : "middle", fmt::format("{:.0f}", step), "soft", 10);
  }
  out.rect(kLeft, kTop, kLossWide, kLossHigh, "class=\"axis\"");
  for (std::size_t c = 0; c < curves.size(); ++c) {
    std::string points;
    bool drawing = false;
    for (const LossPoint& point : curves[c]) {
      if (std::isnan(point.loss)) {
        drawing = false;
        continue;
      }
      points += fmt::format("{}{:.2f},{:.2f} ", drawing ? "L" : "M", x(point.step), y(point.loss));
      drawing = true;
      if (curves[c].size() <= 60)
        out.mark(c, x(point.step), y(point.loss), fmt::format("step {:.0f}: {:.4g}", point.step, point.loss));
    }
    out.path(points, fmt::format("fill=\"none\" stroke=\"{}\" stroke-width=\"1.8\"", series_colour(c)), runs[c].title);
  }
  out.text(kLeft + kLossWide / 2, kTop + kLossHigh + 34, "middle", "step");
  double height = kTop + kLossHigh + 46;
  if (runs.size() > 1) {
    std::vector<std::pair<std::string, std::string>> entries;
    for (std::size_t c = 0; c < runs.size(); ++c)
      entries.emplace_back(fmt::format("fill=\"{}\"", series_colour(c)), runs[c].title);
    height += 8 + out.legend(kLeft, height, kLossWide, entries);
  }
  std::string caption = "Loss of each step: the mean over its samples.";
  if (joined) caption += " Each point is the mean of several steps.";
  return out.finish(kLeft + kLossWide + 24, height, caption);
}

namespace {

constexpr double kCumulativeWide = 720;
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
  const auto x = [&](std::size_t layer) { return kLeft + kCumulativeWide * static_cast<double>(layer) / count; };
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
      out.line(kLeft, y(tick), kLeft + kCumulativeWide, y(tick), "grid");
      out.text(kLeft - 8, y(tick) + 4, "end", axis.label(tick), "soft", 10);
    }
    for (std::size_t r = 1; r < runs.size(); ++r) out.line(x(runs[r].begin), top, x(runs[r].begin), top + kHigh, "cut");
    std::string points;
    for (std::size_t i = 0; i < sums.size(); ++i)
      points += fmt::format("{}{:.2f},{:.2f}", i == 0 ? "M" : " L", x(i), y(sums[i]));
    out.path(points, fmt::format("fill=\"none\" stroke=\"{}\" stroke-width=\"1.8\"", series_colour(0)));
    out.rect(kLeft, top, kCumulativeWide, kHigh, "class=\"axis\"");
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
  out.text(kLeft + kCumulativeWide / 2, title, "middle",
           in_order ? "layers, in the model's order" : "layers, stage by stage");
  std::string caption = "Sums over the first layers, for one microbatch on one device.";
  if (plan != nullptr) caption += " Dashed lines are the cuts between stages; percentages are each stage's share.";
  if (!in_order) caption += " Layers of different stages alternate in the model, so they are shown stage by stage.";
  if (every > 1) caption += fmt::format(" Every {} layers, one is named.", every);
  return out.finish(kLeft + kCumulativeWide + 24, title + 12, caption);
}

}  // namespace stagecraft::report
