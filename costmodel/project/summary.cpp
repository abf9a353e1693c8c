#include "costmodel/project/summary.h"

#include <fmt/format.h>

#include <algorithm>
#include <vector>

#include "costmodel/accuracy/compare.h"
#include "costmodel/text/table.h"
#include "costmodel/text/units_text.h"

namespace stagecraft::project {
namespace {

std::string error_text(std::optional<double> error) { return error ? fmt::format("{:+.1f} %", *error * 100) : "-"; }

Bytes most(const std::vector<RankMemory>& ranks) {
  Bytes out;
  for (const RankMemory& rank : ranks) out = std::max(out, rank.total);
  return out;
}

double mean(const std::vector<double>& values) {
  double sum = 0;
  for (const double value : values) sum += value;
  return values.empty() ? 0 : sum / static_cast<double>(values.size());
}

}  // namespace

std::string summary_text(const Prediction& predicted, const Measurement* measured) {
  std::vector<TableColumn> columns{{"", true}, {"predicted"}};
  std::vector<std::vector<std::string>> rows;
  const auto row = [&](const std::string& name, const std::string& one, const std::string& other,
                       const std::string& error) {
    rows.push_back({name, one});
    if (measured != nullptr) rows.back().insert(rows.back().end(), {other, error});
  };
  const Bytes memory = most(predicted.timeline.memory);
  if (measured == nullptr) {
    row("step", format_seconds(predicted.iteration), "", "");
    if (predicted.samples_per_s) row("samples per second", fmt::format("{:.1f}", *predicted.samples_per_s), "", "");
    row("idle", fmt::format("{:.1f} %", predicted.bubble * 100), "", "");
    if (memory > Bytes(0)) row("peak memory", format_bytes(memory), "", "");
  } else {
    columns.insert(columns.end(), {{"measured"}, {"error"}});
    const Comparison c = compare(predicted, *measured);
    row("step", format_seconds(c.step.predicted), format_seconds(c.step.measured), error_text(c.step.error()));
    if (c.samples_per_s) {
      row("samples per second", fmt::format("{:.1f}", c.samples_per_s->predicted),
          fmt::format("{:.1f}", c.samples_per_s->measured), error_text(c.samples_per_s->error()));
    }
    std::vector<double> idle_predicted;
    std::vector<double> idle_measured;
    for (const BubbleComparison& rank : c.bubbles) {
      idle_predicted.push_back(rank.share.predicted);
      idle_measured.push_back(rank.share.measured);
    }
    row("idle in a run", fmt::format("{:.1f} %", mean(idle_predicted) * 100),
        fmt::format("{:.1f} %", mean(idle_measured) * 100),
        fmt::format("{:+.1f} pt", (mean(idle_predicted) - mean(idle_measured)) * 100));
    const Compared<Bytes> peak{memory, most(measured->timeline.memory)};
    if (memory > Bytes(0) && peak.measured > Bytes(0)) {
      row("peak memory", format_bytes(peak.predicted), format_bytes(peak.measured), error_text(peak.error()));
    }
  }
  return table_text(columns, rows, output_screen());
}

}  // namespace stagecraft::project
