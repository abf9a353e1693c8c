#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <optional>

#include "costmodel/conditions.h"
#include "costmodel/doctor/doctor.h"
#include "costmodel/index.h"
#include "costmodel/text/units_text.h"

namespace stagecraft::doctor {
namespace {

constexpr Seconds kMostLayerTime{100};  ///< of one microbatch
constexpr int kFewestSamples = 5;       ///< fewer have no spread
constexpr double kMostSpread = 0.25;    ///< median absolute deviation / median
constexpr double kLeastShare = 0.05;    ///< of the compute time, below which a layer's spread does not matter
constexpr double kMostClosure = 0.2;    ///< by which the layers may miss the whole iteration

/// Visits every measured document: visit(file, conditions, provenance).
template <class Visit>
void for_each_measured(const ExaminedDocuments& documents, Visit visit) {
  for (const auto& [file, graph] : documents.graphs) visit(file, graph.conditions, graph.provenance);
  for (const auto& [file, topology] : documents.topologies) visit(file, topology.conditions, topology.provenance);
  for (const auto& [file, measurement] : documents.measurements)
    visit(file, measurement.conditions, measurement.provenance);
}

/// Visits the times of every layer that is not an input: visit(file, place, layer, timing).
template <class Visit>
void for_each_time(const FromFile<Graph>& graph, Visit visit) {
  for (std::size_t i = 0; i < graph.value.layers.size(); ++i) {
    const Layer& layer = graph.value.layers[i];
    if (is_input(layer)) continue;
    visit(fmt::format("/layers/{}/forward", i), layer, layer.forward);
    visit(fmt::format("/layers/{}/backward", i), layer, layer.backward);
  }
}

/// Where a topology says why it is not trusted; older files have a note.
std::string place_of_distrust(const Topology& topology) {
  if (topology.provenance.notes.contains("not trusted")) return "/provenance/notes/not trusted";
  for (std::size_t i = 0; i < topology.levels.size(); ++i) {
    if (!topology.levels[i].link.distrust.empty()) return fmt::format("/levels/{}/distrust", i);
  }
  return "/conditions/hosts";
}

void find_distrust(const ExaminedDocuments& documents, const DoctorOptions&, const Report& report) {
  for (const auto& [file, graph] : documents.graphs) {
    if (const std::string text = distrust_text(graph); !text.empty()) {
      report(file, "/quality", text);
      continue;
    }
    for (const std::string& reason : crowded_reasons(graph.conditions, "the profile"))
      report(file, "/conditions/hosts", reason);
  }
  for (const auto& [file, topology] : documents.topologies) {
    if (const std::string text = distrust_text(topology); !text.empty())
      report(file, place_of_distrust(topology), text);
  }
  for (const auto& [file, measurement] : documents.measurements) {
    for (const std::string& reason : crowded_reasons(measurement.conditions, "the run"))
      report(file, "/conditions/hosts", reason);
  }
}

/// The day of "2026-01-02T03:04:05Z"; absent for text that is not a date.
std::optional<std::chrono::sys_days> day_of(const std::string& date) {
  int year = 0;
  unsigned month = 0;
  unsigned day = 0;
  if (std::sscanf(date.c_str(), "%4d-%2u-%2u", &year, &month, &day) != 3) return std::nullopt;
  const std::chrono::year_month_day out{std::chrono::year(year), std::chrono::month(month), std::chrono::day(day)};
  if (!out.ok()) return std::nullopt;
  return std::chrono::sys_days(out);
}

void find_stale(const ExaminedDocuments& documents, const DoctorOptions& options, const Report& report) {
  for_each_measured(documents, [&](const std::string& file, const Conditions&, const Provenance& provenance) {
    const auto day = day_of(provenance.date);
    if (!day || options.today - *day <= options.most_age) return;
    report(file, "/provenance/date",
           fmt::format("measured {} days ago; drivers, libraries and clocks may have changed since: measure again",
                       (options.today - *day).count()));
  });
}

void find_changing_speed(const ExaminedDocuments& documents, const DoctorOptions&, const Report& report) {
  for_each_measured(documents, [&](const std::string& file, const Conditions& conditions, const Provenance&) {
    if (const std::string text = unsteady_text(conditions); !text.empty()) report(file, "/conditions/yardstick", text);
  });
}

void find_long_layers(const ExaminedDocuments& documents, const DoctorOptions&, const Report& report) {
  for (const auto& graph : documents.graphs) {
    for_each_time(graph, [&](const std::string& place, const Layer& layer, const Timing& time) {
      if (time.median <= kMostLayerTime) return;
      report(graph.file, place + "/median_s",
             fmt::format("layer \"{}\" takes {:g} s for one microbatch; if it is in milliseconds, write {:g}", layer.id,
                         time.median.value, time.median.value * 1e-3));
    });
  }
}

void find_few_samples(const ExaminedDocuments& documents, const DoctorOptions&, const Report& report) {
  for (const auto& graph : documents.graphs) {
    std::int64_t fewest = kFewestSamples;
    std::string where;
    for_each_time(graph, [&](const std::string& place, const Layer&, const Timing& time) {
      if (time.count < 1 || time.count >= fewest) return;
      fewest = time.count;
      where = place;
    });
    if (where.empty()) continue;
    report(graph.file, where + "/count",
           fmt::format("{} sample{} of a layer, too few for a spread: profile with a larger --max-seconds", fewest,
                       fewest == 1 ? "" : "s"));
  }
}

void find_noisy_layers(const ExaminedDocuments& documents, const DoctorOptions&, const Report& report) {
  for (const auto& graph : documents.graphs) {
    const Seconds all = compute_time(graph.value);
    for_each_time(graph, [&](const std::string& place, const Layer& layer, const Timing& time) {
      if (!time.spread || time.median < all * kLeastShare || *time.spread <= time.median * kMostSpread) return;
      report(graph.file, place + "/spread_s",
             fmt::format("layer \"{}\" takes {} +- {}: profile on a quiet machine, or for longer", layer.id,
                         format_seconds(time.median), format_seconds(*time.spread)));
    });
  }
}

void find_open_sums(const ExaminedDocuments& documents, const DoctorOptions&, const Report& report) {
  for (const auto& [file, graph] : documents.graphs) {
    if (!graph.iteration || !(graph.iteration->median > Seconds(0)) || !has_times(graph)) continue;
    Seconds sum = compute_time(graph);
    for (const Layer& layer : graph.layers) {
      if (!is_input(layer) && layer.update) sum += layer.update->median;
    }
    const double closure = sum / graph.iteration->median - 1;
    if (std::abs(closure) <= kMostClosure) continue;
    report(file, "/iteration",
           fmt::format("the layers take {} together and the whole iteration {} ({:+.0f} %): they were measured under "
                       "different conditions",
                       format_seconds(sum), format_seconds(graph.iteration->median), closure * 100));
  }
}

void find_wrong_bytes(const ExaminedDocuments& documents, const DoctorOptions&, const Report& report) {
  for (const auto& [file, graph] : documents.graphs) {
    for (std::size_t i = 0; i < graph.layers.size(); ++i) {
      for (std::size_t o = 0; o < graph.layers[i].outputs.size(); ++o) {
        const Output& output = graph.layers[i].outputs[o];
        double wanted = static_cast<double>(value_bytes(output.dtype).value);
        for (const std::int64_t size : output.shape) wanted *= static_cast<double>(size);
        if (value_bytes(output.dtype) == Bytes(0) || output.shape.empty()) continue;
        if (wanted == static_cast<double>(output.bytes.value)) continue;
        report(file, fmt::format("/layers/{}/outputs/{}/activation_bytes", i, o),
               fmt::format("is {}, but {} of shape [{}] has {:.0f}", output.bytes.value, output.dtype,
                           fmt::join(output.shape, ", "), wanted));
      }
    }
  }
}

void find_unfinished_runs(const ExaminedDocuments& documents, const DoctorOptions&, const Report& report) {
  for (const auto& [file, measurement] : documents.measurements) {
    if (!measurement.ended)
      report(file, "/ended", "the run had not ended when this was written; it may still be running, or may have died");
  }
}

void find_estimates(const ExaminedDocuments& documents, const DoctorOptions&, const Report& report) {
  for (const auto& [file, graph] : documents.graphs) {
    if (graph.estimate)
      report(file, "/estimate", estimate_text(graph) + ": profile the model there before you rely on them");
  }
}

}  // namespace

std::vector<DoctorCheck> measurement_checks() {
  using enum Severity;
  return {
      {"SC201", Warning, "a measurement that is not trusted", find_distrust},
      {"SC202", Warning, "a measurement that is stale, see --max-age-days", find_stale},
      {"SC203", Warning, "a device whose speed changed while it was measured", find_changing_speed},
      {"SC204", Warning, "a layer's time that looks like milliseconds", find_long_layers},
      {"SC205", Warning, "a layer with too few samples for a spread", find_few_samples},
      {"SC206", Warning, "a layer whose samples vary widely", find_noisy_layers},
      {"SC207", Warning, "layers that do not add up to the whole iteration", find_open_sums},
      {"SC208", Warning, "bytes that shape and dtype contradict", find_wrong_bytes},
      {"SC209", Warning, "a run that did not end", find_unfinished_runs},
      {"SC210", Warning, "times that were estimated, not measured", find_estimates},
  };
}

}  // namespace stagecraft::doctor
