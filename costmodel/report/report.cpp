#include "costmodel/report/report.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <set>

#include "costmodel/accuracy/compare.h"
#include "costmodel/accuracy/intervals.h"
#include "costmodel/errors.h"
#include "costmodel/format/escaping.h"
#include "costmodel/format/files/outputs.h"
#include "costmodel/format/graph_json.h"
#include "costmodel/format/plan_json.h"
#include "costmodel/format/prediction_json.h"
#include "costmodel/format/results/accuracy_json.h"
#include "costmodel/format/timeline_json.h"
#include "costmodel/format/topology_json.h"
#include "costmodel/index.h"
#include "costmodel/plan.h"
#include "costmodel/prediction/device_match.h"
#include "costmodel/prediction/memory.h"
#include "costmodel/report/pictures.h"
#include "costmodel/text/table.h"
#include "costmodel/text/units_text.h"

namespace stagecraft::report {
namespace {

using format::markup_text;

template <class T>
void add_only(std::optional<FromFile<T>>& place, const std::string& file, T value, const std::string& kind) {
  if (place)
    throw FormatError(
        fmt::format("{}: a report shows one {}, and {} is one, too; leave one out", file, kind, place->file));
  place = FromFile<T>{file, std::move(value)};
}

std::string paragraph(const std::string& words) { return "<p>" + words + "</p>\n"; }

std::string percent(double share) { return fmt::format("{:.1f} %", share * 100); }

const Topology* topology_of(const ReportDocuments& d) { return d.topology ? &d.topology->value : nullptr; }

std::vector<NamedPrediction> named(const std::vector<FromFile<Prediction>>& predictions) {
  std::vector<NamedPrediction> out;
  for (const auto& prediction : predictions) out.push_back({prediction.file, &prediction.value});
  return out;
}

Seconds busy(const StageGroup& stages) { return stages.sum.compute + stages.sum.update + stages.sum.reduce; }

/// The first columns are words, the others figures.
std::string table(const std::vector<std::string>& titles, const std::vector<std::vector<std::string>>& rows,
                  std::size_t words = 1) {
  const auto left = [&](std::size_t column) { return column < words ? " class=\"left\"" : ""; };
  std::string out = "<div class=\"wide\"><table><thead><tr>";
  for (std::size_t i = 0; i < titles.size(); ++i)
    out += std::string("<th scope=\"col\"") + left(i) + ">" + markup_text(titles[i]) + "</th>";
  out += "</tr></thead><tbody>\n";
  for (const auto& row : rows) {
    out += "<tr>";
    for (std::size_t i = 0; i < row.size(); ++i)
      out += std::string("<td") + left(i) + ">" + markup_text(row[i]) + "</td>";
    out += "</tr>\n";
  }
  return out + "</tbody></table></div>\n";
}

std::string card(const std::string& figure, const std::string& what, const std::string& more) {
  return "<div class=\"card\"><b>" + markup_text(figure) + "</b><span>" + markup_text(what) + "</span>" +
         (more.empty() ? "" : "<small>" + markup_text(more) + "</small>") + "</div>\n";
}

std::string prediction_summary(const ReportDocuments& d, const FromFile<Prediction>& document) {
  const Prediction& p = document.value;
  std::string out = "<h3>" + markup_text(document.file) + "</h3>\n<div class=\"cards\">\n";
  out += card(format_seconds(p.iteration), "predicted step",
              p.low && p.high ? "90 % interval: " + format_seconds(*p.low) + " to " + format_seconds(*p.high) : "");
  if (p.samples_per_s) out += card(fmt::format("{:.4g}", *p.samples_per_s), "samples per second", "");
  if (p.rates.tokens_per_s) out += card(fmt::format("{:.0f}", *p.rates.tokens_per_s), "tokens per second", "");
  if (p.rates.flops_per_s) {
    const int used = std::max(1, p.devices - to_int(p.unused_devices.size()));
    out += card(format_rate(FlopsPerSecond(p.rates.flops_per_s->value / used)),
                used > 1 ? "operations per second and device" : "operations per second",
                p.rates.peak_share ? percent(*p.rates.peak_share) + " of the peak of " + p.rates.peak_of : "");
  }
  const std::vector<StageGroup> stages = stage_groups(p);
  const auto slowest = std::ranges::max_element(stages, [](const auto& a, const auto& b) { return busy(a) < busy(b); });
  if (slowest != stages.end())
    out += card(slowest->label, slowest->label.starts_with("stages") ? "are the bottleneck" : "is the bottleneck",
                p.iteration > Seconds(0) ? "busy for " + percent(busy(*slowest) / p.iteration) + " of the step" : "");
  const double in_run = idle_in_run(p);
  const bool differs = !p.timeline.spans.empty() && percent(in_run) != percent(p.bubble);
  out += card(percent(p.bubble), "idle",
              "waiting or without work, mean over the ranks" +
                  (differs ? "; " + percent(in_run) + " in a run" : std::string()));
  const auto fullest = std::ranges::max_element(
      stages, [](const auto& a, const auto& b) { return a.sum.memory.total < b.sum.memory.total; });
  if (fullest != stages.end()) {
    std::string room;
    if (const Topology* t = topology_of(d); t != nullptr && t->device.memory)
      room = fmt::format("{}; {} of the device's {}", fullest->label,
                         percent(fullest->sum.memory.total / *t->device.memory), format_bytes(*t->device.memory));
    else
      room = fullest->label + "; no limit is known";
    out += card(format_bytes(fullest->sum.memory.total), "peak memory", room);
  }
  out += "</div>\n";
  for (const StagePrediction& s : p.stages) {
    if (!s.fits)
      out += "<p class=\"warning\">" +
             markup_text(fmt::format("Stage {} may not fit in the device's memory: it needs up to {}.", s.stage,
                                     format_bytes(std::max(s.memory_bound, s.memory.total)))) +
             "</p>\n";
  }
  if (!p.interval.empty()) out += paragraph("The 90 % interval of the step: " + markup_text(p.interval) + ".");
  for (const std::string& note : {p.other_device, p.backward_parts, p.message_processing, idle_text(p)}) {
    if (!note.empty()) out += paragraph("Note: " + markup_text(note) + ".");
  }
  const std::vector<std::string> next = next_steps(p);
  if (!next.empty()) out += "<p>What would help next:</p>\n<ul>\n";
  for (const std::string& text : next) out += "<li>" + markup_text(text) + ".</li>\n";
  if (!next.empty()) out += "</ul>\n";
  return out;
}

std::string run_summary(const FromFile<Measurement>& document) {
  const Measurement& m = document.value;
  const std::size_t steps = m.timeline.steps.size();
  if (steps == 0) return "";
  const std::size_t skipped = std::min<std::size_t>(2, steps - 1);
  const Seconds time = step_time(m.timeline, skipped);
  std::string out = "<h3>" + markup_text(document.file) + "</h3>\n<div class=\"cards\">\n";
  out += card(format_seconds(time), "measured step",
              fmt::format("median of {}, first {} skipped", count_text(steps - skipped, "step"), skipped));
  if (m.microbatch_samples && time > Seconds(0))
    out += card(fmt::format("{:.4g}", static_cast<double>(*m.microbatch_samples * m.microbatches) / time.value),
                "samples per second", "");
  if (!m.losses.empty())
    out += card(fmt::format("{:.4g}", m.losses.back()), "last loss", fmt::format("first: {:.4g}", m.losses.front()));
  out += "</div>\n";
  if (!m.ended) out += paragraph("The run had not ended when this was written.");
  for (const std::string& reason : crowded_reasons(m.conditions, "the ranks"))
    out += "<p class=\"warning\">" + markup_text(reason) + ".</p>\n";
  return out;
}

/// Sections that need an id of their own each: "plan", "plan-2".
std::string numbered(const std::string& word, std::size_t i) {
  return i == 0 ? word : word + "-" + std::to_string(i + 1);
}

Section summary(const ReportDocuments& d) {
  Section out{"summary", "Summary", "", {}};
  if (d.graph) {
    const Graph& g = d.graph->value;
    std::string words = fmt::format("Model {}: {} layers, {} of parameters", g.name, layer_list(g).size(),
                                    format_bytes(held_parameter_bytes(g)));
    if (has_times(g)) words += ", " + format_seconds(compute_time(g)) + " of forward and backward per microbatch";
    if (g.microbatch_samples) words += fmt::format(" of {} samples", *g.microbatch_samples);
    if (!g.device.name.empty()) words += ", measured on " + g.device.name;
    out.markup += paragraph(markup_text(words) + ".");
    if (const std::string text = distrust_text(g); !text.empty())
      out.markup += "<p class=\"warning\">" + markup_text(text) + ".</p>\n";
  }
  if (d.topology) {
    const Topology& t = d.topology->value;
    out.markup += paragraph(markup_text(fmt::format("Cluster {}: {} devices{}.", t.name, device_count(t),
                                                    t.device.name.empty() ? "" : " (" + t.device.name + ")")));
    if (const std::string text = distrust_text(t); !text.empty())
      out.markup += "<p class=\"warning\">" + markup_text(text) + ".</p>\n";
  }
  for (const auto& plan : d.plans) {
    out.markup += paragraph(markup_text(
        fmt::format("{}: {}, schedule {}, {} per step.", plan.file, count_text(plan.value.stages.size(), "stage"),
                    plan.value.schedule, count_text(plan.value.microbatches, "microbatch", "microbatches"))));
  }
  for (const auto& prediction : d.predictions) out.markup += prediction_summary(d, prediction);
  for (const auto& run : d.runs) out.markup += run_summary(run);
  return out;
}

/// What a list is, its plans, and their pictures.
Section list_section(const ReportDocuments& d, const FromFile<format::PlanList>& document, std::size_t i) {
  constexpr std::size_t kRows = 30;
  constexpr std::size_t kReplicas = 24;  ///< characters
  const format::PlanList& list = document.value;
  const std::size_t count = list.plans.size();
  std::string words = list.list == "front"
                          ? fmt::format("{} that no other plan dominates in step time, devices and peak memory",
                                        count_text(count, "plan"))
                          : fmt::format("The {} best plan{} by {}", count, count == 1 ? "" : "s", list.objective);
  words += fmt::format(", of {} that fit in memory; schedule {}, {} per step", list.considered, list.schedule,
                       count_text(list.microbatches, "microbatch", "microbatches"));
  std::string markup = paragraph(markup_text(words) + ".");
  if (list.lower_bound)
    markup += paragraph(
        markup_text("No plan of the search has a shorter step than " + format_seconds(*list.lower_bound) + "."));
  const bool samples = list.plans.front().samples_per_s.has_value();
  std::vector<std::string> titles{"#", "plan", "replicas", "devices", "step"};
  if (samples) titles.emplace_back("samples/s");
  titles.insert(titles.end(), {"peak memory", "idle"});
  if (list.price_per_device_hour) titles.emplace_back("price of 1000 steps");
  std::vector<std::vector<std::string>> rows;
  bool parts = false;
  for (const format::ListedPlan& plan : list.plans) {
    parts = parts || plan.parts;
    if (rows.size() == kRows) continue;
    std::string name = plan.origin;
    if (plan.recomputed > 0)
      name += plan.recomputed == to_int(plan.replicas.size()) ? ", recomputed"
                                                              : fmt::format(", {} recomputed", plan.recomputed);
    std::vector<std::string> row{std::to_string(rows.size() + 1), std::move(name),
                                 replicas_text(plan.replicas, kReplicas), std::to_string(plan.device_count),
                                 format_seconds(plan.step)};
    if (samples) row.push_back(fmt::format("{:.4g}", plan.samples_per_s.value_or(0)));
    row.push_back(format_bytes(plan.memory));
    row.push_back(plan.parts && plan.step > Seconds(0) ? percent(idle_time(*plan.parts) / plan.step) : "");
    if (list.price_per_device_hour) row.push_back(plan.price ? fmt::format("{:.4g}", *plan.price * 1000) : "");
    rows.push_back(std::move(row));
  }
  markup += table(titles, rows, 3);
  if (count > kRows) markup += paragraph(fmt::format("And {} more.", count - kRows));
  Section out{numbered("plans", i), "Plans to choose from: " + document.file, markup, {}};
  std::optional<Bytes> limit = list.memory_limit;
  if (const Topology* t = topology_of(d); t != nullptr && !limit) limit = t->device.memory;
  out.pictures.push_back(front_picture(numbered("plan-front", i), list, limit));
  if (parts) out.pictures.push_back(plan_parts_picture(numbered("plan-parts", i), list));
  return out;
}

void add_comparison(std::vector<Section>& out, const FromFile<Comparison>& document, std::size_t i) {
  const Comparison& c = document.value;
  const auto error = c.step.error();
  std::string words =
      fmt::format("Step: predicted {}, measured {}", format_seconds(c.step.predicted), format_seconds(c.step.measured));
  if (error) words += fmt::format(", error {:+.1f} %", *error * 100);
  if (const auto inside = is_inside(c))
    words += *inside ? "; the measured step lies inside the prediction's 90 % interval"
                     : "; the measured step lies outside the prediction's 90 % interval";
  std::string markup = paragraph(markup_text(words) + ".");
  for (const std::string& reason : c.distrust) markup += "<p class=\"warning\">" + markup_text(reason) + ".</p>\n";
  std::vector<std::vector<std::string>> rows;
  const auto add = [&](const std::string& what, const std::string& predicted, const std::string& measured,
                       std::optional<double> e) {
    rows.push_back({what, predicted, measured, e ? fmt::format("{:+.1f} %", *e * 100) : ""});
  };
  add("step", format_seconds(c.step.predicted), format_seconds(c.step.measured), error);
  for (const BubbleComparison& b : c.bubbles)
    rows.push_back(
        {fmt::format("rank {} idle in a run", b.rank), percent(b.share.predicted), percent(b.share.measured), ""});
  for (const MemoryComparison& m : c.memory)
    add(fmt::format("rank {} peak memory", m.rank), format_bytes(m.peak.predicted), format_bytes(m.peak.measured),
        m.peak.error());
  markup += table({"", "predicted", "measured", "error"}, rows);
  Section section{numbered("comparison", i), "Predicted and measured: " + document.file, markup, {}};
  if (!c.actions.empty()) section.pictures.push_back(actions_picture(numbered("actions", i), c));
  out.push_back(std::move(section));
}

/// The files of the report with what made them. Of a file without provenance, only its name is known.
Section files_section(const ReportDocuments& d) {
  std::vector<std::vector<std::string>> rows;
  const auto add = [&](const std::string& file, const std::string& kind, const Provenance& made) {
    const auto command = made.notes.find("command");
    rows.push_back({file, kind, made.tool, made.date, made.device, command == made.notes.end() ? "" : command->second});
  };
  if (d.graph) add(d.graph->file, "graph", d.graph->value.provenance);
  if (d.topology) add(d.topology->file, "topology", d.topology->value.provenance);
  for (const auto& plan : d.plans) add(plan.file, "plan", plan.value.provenance);
  for (const auto& prediction : d.predictions) add(prediction.file, "prediction", prediction.value.provenance);
  for (const auto& run : d.runs) add(run.file, "measured run", run.value.provenance);
  for (const auto& comparison : d.comparisons) add(comparison.file, "comparison", {});
  for (const auto& list : d.lists) add(list.file, "list of plans", {});
  if (d.validation) add(d.validation->file, "validation", {});
  const std::vector<std::string> titles{"file", "contents", "made by", "date", "on", "command"};
  return {"files", "Files", table(titles, rows, titles.size()), {}};
}

}  // namespace

const std::vector<std::string>& readable_formats() {
  static const std::vector<std::string> formats{
      "stagecraft.graph",    "stagecraft.topology",   "stagecraft.plan",  "stagecraft.prediction",
      "stagecraft.timeline", "stagecraft.comparison", "stagecraft.plans", "stagecraft.validation"};
  return formats;
}

void add_document(ReportDocuments& d, const std::string& text, const std::string& file) {
  const std::string kind = format::text_kind(text);
  if (kind == "stagecraft.graph") {
    add_only(d.graph, file, format::parse_graph(text, file), "graph");
  } else if (kind == "stagecraft.topology") {
    add_only(d.topology, file, format::parse_topology(text, file), "topology");
  } else if (kind == "stagecraft.plan") {
    d.plans.push_back({file, format::parse_plan(text, file)});
  } else if (kind == "stagecraft.prediction") {
    d.predictions.push_back({file, format::parse_prediction(text, file)});
  } else if (kind == "stagecraft.timeline") {
    d.runs.push_back({file, format::parse_measurement(text, file)});
  } else if (kind == "stagecraft.comparison") {
    d.comparisons.push_back({file, format::parse_comparison(text, file)});
  } else if (kind == "stagecraft.plans") {
    d.lists.push_back({file, format::parse_plan_list(text, file)});
  } else if (kind == "stagecraft.validation") {
    add_only(d.validation, file, format::parse_validation(text, file), "validation");
  } else {
    throw FormatError(ErrorKind::OtherDocument,
                      fmt::format("{}: /format: found {}, expected one of {}", file,
                                  kind.empty() ? "no document of stagecraft" : "\"" + kind + "\"",
                                  fmt::join(readable_formats(), ", ")));
  }
}

std::vector<std::optional<std::size_t>> prediction_of_run(const ReportDocuments& d) {
  std::vector<std::size_t> runs(d.predictions.size(), 0);
  std::vector<std::optional<std::size_t>> out;
  for (const auto& run : d.runs) {
    std::optional<std::size_t> best;
    for (std::size_t i = 0; i < runs.size(); ++i) {
      if (d.predictions[i].value.timeline.stage_of_rank != run.value.timeline.stage_of_rank) continue;
      if (!best || runs[i] < runs[*best]) best = i;
    }
    if (best) ++runs[*best];
    out.push_back(best);
  }
  return out;
}

std::vector<std::string> complete(ReportDocuments& d, const std::function<void(const std::string&)>& progress) {
  std::vector<std::string> out;
  if (d.predictions.empty() && d.graph && d.topology && has_times(d.graph->value)) {
    for (const auto& plan : d.plans) {
      if (progress) progress("predicting " + plan.file);
      try {
        (void)accepted_differences(d.graph->value, d.topology->value, false);
        auto result =
            predict_with_intervals(d.graph->value, d.topology->value, BoundPlan(plan.value), std::nullopt, {});
        if (const auto* none = std::get_if<Infeasible>(&result))
          out.push_back(plan.file + ": not predicted: " + none->reason);
        else
          d.predictions.push_back({plan.file + ", predicted", std::get<Prediction>(std::move(result))});
      } catch (const std::invalid_argument& e) { out.push_back(plan.file + ": not predicted: " + e.what()); }
    }
  }
  if (!d.comparisons.empty()) return out;
  const auto predictions = prediction_of_run(d);
  for (std::size_t run = 0; run < d.runs.size(); ++run) {
    const auto& m = d.runs[run];
    if (!predictions[run]) {
      if (!d.predictions.empty()) out.push_back(m.file + ": not compared: no prediction has its ranks and stages");
      continue;
    }
    const auto& p = d.predictions[*predictions[run]];
    if (progress) progress("comparing " + m.file);
    try {
      d.comparisons.push_back({p.file + " and " + m.file, compare(p.value, m.value)});
    } catch (const std::invalid_argument& e) {
      out.push_back(p.file + " and " + m.file + ": not compared: " + e.what());
    }
  }
  return out;
}

std::vector<Section> sections(const ReportDocuments& d) {
  std::vector<Section> out{summary(d)};
  for (std::size_t i = 0; i < d.lists.size(); ++i) out.push_back(list_section(d, d.lists[i], i));
  // Those that show the same ranks share a time axis: a prediction with the runs.
  const auto predictions = prediction_of_run(d);
  Section timeline{"timeline", "Pipeline timeline", "", {}};
  if (!d.predictions.empty()) {
    for (std::size_t i = 0; i < d.predictions.size(); ++i) {
      const Prediction& p = d.predictions[i].value;
      std::vector<ShownStep> group{shown_step(p)};
      if (d.predictions.size() > 1) group.front().title = "predicted, " + d.predictions[i].file;
      for (std::size_t run = 0; run < d.runs.size(); ++run) {
        if (predictions[run] != i) continue;
        if (auto step = shown_step(d.runs[run].value)) group.push_back(*step);
      }
      if (!p.timeline.spans.empty()) timeline.pictures.push_back(gantt_picture(numbered("gantt", i), group));
    }
  }
  for (std::size_t run = 0; run < d.runs.size(); ++run) {
    if (predictions[run]) continue;
    if (auto step = shown_step(d.runs[run].value))
      timeline.pictures.push_back(gantt_picture(numbered("gantt", timeline.pictures.size()), {*step}));
  }
  if (!timeline.pictures.empty()) out.push_back(std::move(timeline));
  std::vector<NamedLosses> losses;
  for (const auto& run : d.runs) {
    if (!run.value.losses.empty() && !run.value.timeline.steps.empty()) losses.push_back({run.file, &run.value});
  }
  if (!losses.empty()) out.push_back({"loss", "Loss", "", {loss_picture("loss-curve", losses)}});
  if (!d.predictions.empty()) {
    out.push_back(
        {"breakdown", "Where the time goes", "", {breakdown_picture("breakdown-bars", named(d.predictions))}});
    const Topology* t = topology_of(d);
    const std::optional<Bytes> limit = t != nullptr ? t->device.memory : std::nullopt;
    Section memory{"memory", "Memory", "", {memory_picture("memory-bars", named(d.predictions), limit)}};
    Section scaling{"scaling", "Scaling", "", {}};
    for (const auto& prediction : d.predictions) {
      const Prediction& p = prediction.value;
      if (!p.memory_over_time.empty()) {
        memory.pictures.push_back(
            memory_over_time_picture(numbered("memory-course", memory.pictures.size() - 1), p, limit));
      }
      if (!p.scaling.empty())
        scaling.pictures.push_back(scaling_picture(numbered("scaling-curve", scaling.pictures.size()), p.scaling));
    }
    out.push_back(std::move(memory));
    if (!scaling.pictures.empty()) out.push_back(std::move(scaling));
  }
  for (std::size_t i = 0; i < d.comparisons.size(); ++i) add_comparison(out, d.comparisons[i], i);
  if (d.graph) {
    const Graph& graph = d.graph->value;
    Section layers{"layers", "Costs of the layers", "", {}};
    Section layout{"model", "Model", "", {}};
    std::vector<const FromFile<Plan>*> plans;
    for (const auto& plan : d.plans) plans.push_back(&plan);
    if (plans.empty()) plans.push_back(nullptr);
    for (std::size_t i = 0; i < plans.size(); ++i) {
      try {
        const Plan* plan = plans[i] == nullptr ? nullptr : &plans[i]->value;
        layout.pictures.push_back(layout_picture(numbered("graph", i), graph, plan));
        if (plans.size() > 1) layout.pictures.back().caption += " " + plans[i]->file + ".";
        layers.pictures.push_back(cumulative_picture(numbered("layer-sums", i), graph, plan));
        if (plans.size() > 1) layers.pictures.back().caption += " " + plans[i]->file + ".";
      } catch (const std::invalid_argument& e) {
        throw InputError(kind_of(e), plans[i]->file + ": " + e.what() + " (in " + d.graph->file + ")");
      }
    }
    layers.pictures.push_back(
        layer_bars_picture("layer-bars", graph, plans[0] == nullptr ? nullptr : &plans[0]->value));
    out.push_back(std::move(layers));
    out.push_back(std::move(layout));
  }
  if (d.topology) out.push_back({"links", "Links", "", {link_picture("link-curves", d.topology->value)}});
  if (d.validation) {
    try {
      out.push_back({"validation", "Validation", "", {validation_picture("validation-scatter", d.validation->value)}});
    } catch (const std::invalid_argument& e) { throw InputError(kind_of(e), d.validation->file + ": " + e.what()); }
  }
  out.push_back(files_section(d));
  return out;
}

}  // namespace stagecraft::report
