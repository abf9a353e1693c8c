#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <map>

#include "costmodel/index.h"
#include "costmodel/interchange/pipedream_conf.h"
#include "costmodel/report/pictures.h"
#include "costmodel/text/units_text.h"

namespace stagecraft::report {

std::vector<StageGroup> stage_groups(const Prediction& prediction) {
  std::vector<StageGroup> out;
  for (const std::vector<int>& stages : stages_of_positions(prediction)) {
    StageGroup& group = out.emplace_back();
    group.label = fmt::format("stage{} {}", stages.size() == 1 ? "" : "s", fmt::join(stages, ", "));
    for (const int s : stages) {
      const StagePrediction& stage = prediction.stages[to_index(s)];
      if (s == stages.front()) {
        group.sum = stage;
        continue;
      }
      group.sum.compute += stage.compute;
      group.sum.update += stage.update;
      group.sum.reduce += stage.reduce;
      group.sum.exposed_transfer += stage.exposed_transfer;
      group.sum.bubble += stage.bubble;
      group.sum.memory.total += stage.memory.total;
      for (const auto& [part, bytes] : stage.memory.parts) group.sum.memory.parts[part] += bytes;
      group.sum.fits = group.sum.fits && stage.fits;
    }
  }
  return out;
}

std::vector<int> stage_of_layers(const Graph& graph, const Plan* plan) {
  std::vector<int> out(graph.layers.size(), -1);
  if (plan == nullptr) return out;
  const Graph staged = interchange::staged_graph(graph, *plan);
  for (std::size_t i = 0; i < out.size(); ++i) {
    if (!is_input(graph.layers[i])) out[i] = *staged.layers[i].stage;
  }
  return out;
}

namespace {

constexpr double kLeft = 150;
constexpr double kWide = 760;
constexpr double kRow = 24;
constexpr double kRight = 110;

/// A part of a bar.
struct Piece {
  std::string name;
  Fill fill = Fill::First;
  double value = 0;
};

struct BarRow {
  std::string label;
  std::string total;
  std::vector<Piece> pieces;
};

struct BarGroup {
  std::string title;
  std::vector<BarRow> rows;
};

struct Limit {
  double value = 0;
  std::string label;
};

/// Groups of bars from a common axis; `show` writes a value for a tooltip.
template <class Show>
Picture stacked(Drawing& out, const std::vector<BarGroup>& groups, const Axis& axis, const std::string& quantity,
                const std::vector<std::pair<std::string, std::string>>& entries, const std::optional<Limit>& limit,
                const std::string& caption, Show show) {
  const auto x = [&](double value) { return kLeft + kWide * value / axis.end; };
  double y = 12 + out.legend(kLeft, 12, kWide, entries) + (limit ? 20 : 6);
  const double top = y;
  double bottom = top;
  for (const BarGroup& group : groups) bottom += (group.title.empty() ? 4 : 22) + kRow * to_int(group.rows.size()) + 4;
  for (const double tick : axis.ticks) out.line(x(tick), top, x(tick), bottom, "grid");
  for (const BarGroup& group : groups) {
    if (!group.title.empty()) {
      out.text(12, y + 15, "start", fitted(group.title, kLeft + kWide, 11), "strong");
      y += 22;
    } else {
      y += 4;
    }
    for (const BarRow& row : group.rows) {
      out.text(kLeft - 8, y + 15, "end", fitted(row.label, kLeft - 20, 11));
      double at = 0;
      for (const Piece& piece : row.pieces) {
        if (piece.value <= 0) continue;
        out.rect(x(at), y + 3, x(at + piece.value) - x(at), kRow - 6, out.fill(piece.fill),
                 row.label + (piece.name.empty() ? "" : ", " + piece.name) + ": " + show(piece.value), "class=\"bar\"");
        at += piece.value;
      }
      out.text(x(at) + 6, y + 15, "start", row.total, "soft");
      y += kRow;
    }
    y += 4;
  }
  out.line(kLeft, top, kLeft, bottom, "axis");
  out.line(kLeft, bottom, kLeft + kWide, bottom, "axis");
  for (const double tick : axis.ticks) out.text(x(tick), bottom + 16, "middle", axis.label(tick), "soft");
  out.text(kLeft + kWide / 2, bottom + 34, "middle", quantity + ", " + axis.unit);
  if (limit) {
    out.line(x(limit->value), top - 4, x(limit->value), bottom, "limit");
    out.text(x(limit->value), top - 8, limit->value > axis.end / 2 ? "end" : "start", limit->label, "limittext");
  }
  return out.finish(kLeft + kWide + kRight, bottom + 46, caption);
}

std::string label_of(const StageGroup& group) {
  return group.sum.replicas > 1 ? fmt::format("{} (x{})", group.label, group.sum.replicas) : group.label;
}

}  // namespace

Picture breakdown_picture(const std::string& name, const std::vector<NamedPrediction>& predictions) {
  Drawing out(name, "Where a step's time goes");
  Seconds most;
  std::vector<BarGroup> groups;
  for (const NamedPrediction& named : predictions) {
    BarGroup& group = groups.emplace_back();
    if (predictions.size() > 1) group.title = named.title;
    most = std::max(most, named.prediction->iteration, std::less<>());
    for (const StageGroup& stages : stage_groups(*named.prediction)) {
      const StagePrediction& stage = stages.sum;
      const Seconds busy = stage.compute + stage.update + stage.reduce;
      const Seconds all = busy + stage.exposed_transfer + stage.bubble;
      most = std::max(most, all, std::less<>());
      group.rows.push_back({label_of(stages),
                            all > Seconds(0) ? fmt::format("{:.0f} % busy", 100 * (busy / all)) : "",
                            {{"compute", Fill::Compute, stage.compute.value},
                             {"update", Fill::Update, stage.update.value},
                             {"all-reduce", Fill::Reduce, stage.reduce.value},
                             {"exposed transfer", Fill::Transfer, stage.exposed_transfer.value},
                             {"bubble", Fill::Bubble, stage.bubble.value}}});
    }
  }
  const std::vector<std::pair<std::string, std::string>> entries{{out.fill(Fill::Compute), "compute"},
                                                                 {out.fill(Fill::Update), "update"},
                                                                 {out.fill(Fill::Reduce), "all-reduce"},
                                                                 {out.fill(Fill::Transfer), "exposed transfer"},
                                                                 {out.fill(Fill::Bubble), "bubble (idle)"}};
  return stacked(
      out, groups, time_axis(most, 8), "time of one step", entries, std::nullopt,
      "Predicted parts of one step of each device's stages, as means over replicas; they add up to the step.",
      [](double value) { return format_seconds(Seconds(value)); });
}

Picture memory_picture(const std::string& name, const std::vector<NamedPrediction>& predictions,
                       std::optional<Bytes> limit) {
  Drawing out(name, "Peak memory");
  // Parts by what a reader can do about them.
  const auto kind_of = [](MemoryPart part) {
    switch (part) {
      case MemoryPart::Parameters:
      case MemoryPart::Frozen:
      case MemoryPart::OlderVersions:
        return 0;
      case MemoryPart::Gradients:
      case MemoryPart::Optimizer:
      case MemoryPart::Reduction:
        return 1;
      case MemoryPart::Activations:
      case MemoryPart::Inputs:
        return 2;
      default:
        return 3;
    }
  };
  const std::vector<std::pair<std::string, Fill>> kinds{{"parameters", Fill::First},
                                                        {"gradients, optimizer", Fill::Second},
                                                        {"activations, inputs", Fill::Third},
                                                        {"messages, workspace, rest", Fill::Fourth}};
  Bytes most = limit.value_or(Bytes(0));
  std::vector<BarGroup> groups;
  for (const NamedPrediction& named : predictions) {
    BarGroup& group = groups.emplace_back();
    if (predictions.size() > 1) group.title = named.title;
    for (const StageGroup& stages : stage_groups(*named.prediction)) {
      const StagePrediction& stage = stages.sum;
      most = std::max(most, stage.memory.total, std::less<>());
      BarRow row{label_of(stages), format_bytes(stage.memory.total), {}};
      for (const auto& [words, fill] : kinds) row.pieces.push_back({words, fill, 0});
      Bytes known;
      for (const auto& [part, bytes] : stage.memory.parts) {
        row.pieces[to_index(kind_of(part))].value += static_cast<double>(bytes.value);
        known += bytes;
      }
      if (known < stage.memory.total)
        row.pieces.back().value += static_cast<double>((stage.memory.total - known).value);
      group.rows.push_back(std::move(row));
    }
  }
  // A limit far away would make the bars invisible; it is then only named.
  Bytes highest;
  for (const NamedPrediction& named : predictions) {
    for (const StageGroup& stages : stage_groups(*named.prediction))
      highest = std::max(highest, stages.sum.memory.total, std::less<>());
  }
  std::optional<Limit> drawn;
  std::string caption = "Predicted peak of one rank of each stage, by part; stages of one device together.";
  if (limit) {
    caption += " The device has " + format_bytes(*limit) + ".";
    if (highest.value > limit->value / 8)
      drawn = Limit{static_cast<double>(limit->value), "limit " + format_bytes(*limit)};
    else
      most = highest;
  }
  std::vector<std::pair<std::string, std::string>> entries;
  for (const auto& [words, fill] : kinds) entries.emplace_back(out.fill(fill), words);
  return stacked(out, groups, bytes_axis(most, 8), "bytes", entries, drawn, caption,
                 [](double value) { return format_bytes(Bytes(static_cast<std::int64_t>(value))); });
}

Picture plan_parts_picture(const std::string& name, const format::PlanList& list) {
  constexpr std::size_t kMost = 12;
  Drawing out(name, "Where the steps of the plans go");
  Seconds most;
  BarGroup group;
  for (std::size_t i = 0; i < list.plans.size() && group.rows.size() < kMost; ++i) {
    const format::ListedPlan& plan = list.plans[i];
    if (!plan.parts) continue;
    const StepParts& parts = *plan.parts;
    most = std::max({most, total(parts), plan.step}, std::less<>());
    group.rows.push_back({fmt::format("{} ({} device{})", i + 1, plan.device_count, plan.device_count == 1 ? "" : "s"),
                          format_seconds(plan.step),
                          {{"compute", Fill::Compute, (parts.compute + parts.host).value},
                           {"update", Fill::Update, parts.update.value},
                           {"gradient reduction", Fill::Reduce, parts.reduce.value},
                           {"exposed transfer", Fill::Transfer, parts.exposed_transfer.value},
                           {"bubble", Fill::Bubble, parts.bubble.value}}});
  }
  const std::vector<std::pair<std::string, std::string>> entries{{out.fill(Fill::Compute), "compute"},
                                                                 {out.fill(Fill::Update), "update"},
                                                                 {out.fill(Fill::Reduce), "gradient reduction"},
                                                                 {out.fill(Fill::Transfer), "exposed transfer"},
                                                                 {out.fill(Fill::Bubble), "bubble (idle)"}};
  return stacked(out, {group}, time_axis(most, 8), "time of one step", entries, std::nullopt,
                 "Predicted parts of a step of each plan, numbered as in the list, as means over its devices; they add "
                 "up to the step.",
                 [](double value) { return format_seconds(Seconds(value)); });
}

Picture actions_picture(const std::string& name, const Comparison& comparison) {
  Drawing out(name, "Predicted and measured actions");
  Seconds most;
  std::vector<BarGroup> groups;
  for (const ActionComparison& action : comparison.actions) {
    most = std::max({most, action.time.predicted, action.time.measured}, std::less<>());
    BarGroup& group = groups.emplace_back();
    group.title = fmt::format("stage {}, {}", action.stage, to_string(action.kind));
    group.rows.push_back(
        {"predicted", format_seconds(action.time.predicted), {{"", Fill::First, action.time.predicted.value}}});
    const auto error = action.time.error();
    group.rows.push_back(
        {"measured",
         format_seconds(action.time.measured) + (error ? fmt::format(" ({:+.0f} %)", *error * 100) : ""),
         {{"", Fill::Second, action.time.measured.value}}});
  }
  const std::vector<std::pair<std::string, std::string>> entries{
      {out.fill(Fill::First), "predicted"}, {out.fill(Fill::Second), "measured (error of the prediction)"}};
  return stacked(out, groups, time_axis(most, 8), "time of one action", entries, std::nullopt,
                 "Mean over ranks and microbatches, then the median of the measured steps.",
                 [](double value) { return format_seconds(Seconds(value)); });
}

namespace {

constexpr double kPlotLeft = 86;
constexpr double kPlotTop = 20;
constexpr double kPlotWide = 620;
constexpr double kPlotHigh = 260;

std::string stroke(std::size_t i, const char* more = "") {
  return fmt::format("fill=\"none\" stroke=\"{}\" stroke-width=\"1.6\"{}", series_colour(i), more);
}

/// Horizontal lines with labels at the ticks of `axis`, and the frame's lower edge.
void grid(Drawing& out, const Axis& axis, const std::string& what) {
  for (const double tick : axis.ticks) {
    const double y = kPlotTop + kPlotHigh - kPlotHigh * tick / axis.end;
    out.line(kPlotLeft, y, kPlotLeft + kPlotWide, y, "grid");
    out.text(kPlotLeft - 6, y + 4, "end", axis.label(tick));
  }
  out.text(kPlotLeft - 6, kPlotTop - 8, "end", axis.unit.empty() ? what : axis.unit);
}

}  // namespace

Picture memory_over_time_picture(const std::string& name, const Prediction& prediction, std::optional<Bytes> limit) {
  Drawing out(name, "Memory over time");
  Seconds until;
  Bytes highest;
  for (const MemoryOverTime& course : prediction.memory_over_time) {
    for (const MemoryMoment& moment : course.moments) {
      until = std::max(until, moment.from);
      highest = std::max(highest, moment.bytes);
    }
  }
  // A limit far away would flatten the courses; it is then only named.
  const bool draws_limit = limit && highest.value > limit->value / 8;
  const Axis times = time_axis(until, 8);
  const Axis bytes = bytes_axis(draws_limit ? std::max(highest, *limit) : highest, 6);
  grid(out, bytes, "bytes");
  const auto x = [&](Seconds time) { return kPlotLeft + kPlotWide * time.value / times.end; };
  const auto y = [&](Bytes of) { return kPlotTop + kPlotHigh - kPlotHigh * static_cast<double>(of.value) / bytes.end; };
  for (const double tick : times.ticks) {
    const double at = kPlotLeft + kPlotWide * tick / times.end;
    out.line(at, kPlotTop + kPlotHigh, at, kPlotTop + kPlotHigh + 4, "grid");
    out.text(at, kPlotTop + kPlotHigh + 17, "middle", times.label(tick));
  }
  out.text(kPlotLeft + kPlotWide, kPlotTop + kPlotHigh + 32, "end", times.unit);
  std::vector<std::pair<std::string, std::string>> entries;
  for (std::size_t i = 0; i < prediction.memory_over_time.size(); ++i) {
    const MemoryOverTime& course = prediction.memory_over_time[i];
    if (course.moments.empty()) continue;
    std::string line = fmt::format("M{:.2f},{:.2f}", x(course.moments.front().from), y(course.moments.front().bytes));
    Bytes most;
    for (const MemoryMoment& moment : course.moments) {
      line += fmt::format(" H{:.2f} V{:.2f}", x(moment.from), y(moment.bytes));
      most = std::max(most, moment.bytes);
    }
    const std::string who = fmt::format("rank {}", course.rank);
    out.path(line, stroke(i), fmt::format("{}: at most {}", who, format_bytes(most)));
    entries.emplace_back(fmt::format("fill=\"{}\"", series_colour(i)),
                         fmt::format("{}, at most {}", who, format_bytes(most)));
  }
  std::string caption =
      "Memory of the first replica of each stage during and after its computations; the activations of a microbatch "
      "are kept from its forward to its backward.";
  if (limit) caption += " The device has " + format_bytes(*limit) + ".";
  if (draws_limit) {
    out.line(kPlotLeft, y(*limit), kPlotLeft + kPlotWide, y(*limit), "limit");
    out.text(kPlotLeft + kPlotWide, y(*limit) - 5, "end", "limit " + format_bytes(*limit));
  }
  const double legend = out.legend(kPlotLeft, kPlotTop + kPlotHigh + 46, kPlotWide, entries);
  return out.finish(kPlotLeft + kPlotWide + 20, kPlotTop + kPlotHigh + 52 + legend, caption);
}

Picture scaling_picture(const std::string& name, const std::vector<ScalePoint>& points) {
  Drawing out(name, "Scaling");
  int most = 1;
  double highest = 1;
  for (const ScalePoint& point : points) {
    most = std::max(most, point.copies);
    highest = std::max({highest, point.copies * point.efficiency_high, static_cast<double>(point.copies)});
  }
  const double end = highest * 1.05;
  const auto x = [&](double copies) { return kPlotLeft + kPlotWide * copies / (most * 1.05); };
  const auto y = [&](double speedup) { return kPlotTop + kPlotHigh - kPlotHigh * speedup / end; };
  const int step = std::max(1, static_cast<int>(std::ceil(highest / 8)));
  for (int tick = 0; tick <= highest; tick += step) {
    out.line(kPlotLeft, y(tick), kPlotLeft + kPlotWide, y(tick), "grid");
    out.text(kPlotLeft - 6, y(tick) + 4, "end", fmt::format("{} x", tick));
  }
  out.line(x(0), y(0), x(most), y(most), "limit");
  std::vector<const ScalePoint*> sorted;
  for (const ScalePoint& point : points) sorted.push_back(&point);
  std::ranges::sort(sorted, {}, [](const ScalePoint* point) { return point->copies; });
  std::string upper;
  std::string lower;
  std::string middle;
  for (const ScalePoint* point : sorted) {
    const double n = point->copies;
    upper += fmt::format("{}{:.2f},{:.2f} ", upper.empty() ? "M" : "L", x(n), y(n * point->efficiency_high));
    lower = fmt::format("L{:.2f},{:.2f} ", x(n), y(n * point->efficiency_low)) + lower;
    middle += fmt::format("{}{:.2f},{:.2f} ", middle.empty() ? "M" : "L", x(n), y(n * point->efficiency));
  }
  if (!sorted.empty()) {
    out.path(upper + lower + "Z", fmt::format("fill=\"{}\" fill-opacity=\"0.2\" stroke=\"none\"", series_colour(0)));
    out.path(middle, stroke(0));
  }
  for (const ScalePoint* point : sorted) {
    const double n = point->copies;
    const std::string words = fmt::format("{} devices: {} per step, {:.1f} % efficient ({:.1f} to {:.1f} %)",
                                          point->devices, format_seconds(point->iteration), point->efficiency * 100,
                                          point->efficiency_low * 100, point->efficiency_high * 100);
    out.rect(x(n) - 3.5, y(n * point->efficiency) - 3.5, 7, 7, fmt::format("fill=\"{}\"", series_colour(0)), words);
  }
  double free = kPlotLeft + kPlotWide + 20;  // left of the labels so far
  for (auto point = sorted.rbegin(); point != sorted.rend(); ++point) {
    const std::string label = std::to_string((*point)->copies);
    const double half = text_width(label, 11) / 2;
    if (x((*point)->copies) + half > free) continue;
    out.text(x((*point)->copies), kPlotTop + kPlotHigh + 17, "middle", label);
    free = x((*point)->copies) - half - 4;
  }
  out.text(kPlotLeft + kPlotWide, kPlotTop + kPlotHigh + 32, "end", "copies of the plan");
  const double legend =
      out.legend(kPlotLeft, kPlotTop + kPlotHigh + 46, kPlotWide,
                 {{fmt::format("fill=\"{}\"", series_colour(0)), "predicted throughput, with its 90 % interval"},
                  {"fill=\"none\"", "dashed: perfect scaling"}});
  return out.finish(kPlotLeft + kPlotWide + 20, kPlotTop + kPlotHigh + 52 + legend,
                    "Throughput of several copies of the plan over that of one. The difference from the dashed line is "
                    "the cost of summing gradients across the copies.");
}

}  // namespace stagecraft::report
