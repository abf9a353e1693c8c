#include <fmt/format.h>

#include <algorithm>
#include <map>

#include "costmodel/index.h"
#include "costmodel/report/pictures.h"
#include "costmodel/text/units_text.h"

namespace stagecraft::report {
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

}  // namespace stagecraft::report
