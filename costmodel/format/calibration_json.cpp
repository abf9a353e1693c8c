#include "costmodel/format/calibration_json.h"

#include "costmodel/format/files/files.h"
#include "costmodel/format/shared_notations.h"

namespace stagecraft::format {
namespace {

struct LevelFactor {
  std::string level;
  double factor = 1;
};

Field<Calibration> links() {
  const auto of_level = object<LevelFactor>(
      {
          required("level", &LevelFactor::level, text(), "Name of the level."),
          required("time_factor", &LevelFactor::factor, positive(),
                   "Factor on the times of its transfers and collectives."),
      },
      "One level.");
  return derived<Calibration, std::vector<LevelFactor>>(
      "links",
      [](const Calibration& calibration) {
        std::vector<LevelFactor> out;
        for (const auto& [level, factor] : calibration.links) out.push_back({level, factor});
        return out;
      },
      [](const Cursor& at, Calibration& calibration, const std::vector<LevelFactor>& factors) {
        for (std::size_t i = 0; i < factors.size(); ++i) {
          if (!calibration.links.emplace(factors[i].level, factors[i].factor).second)
            at.at(i).member("level").fail("a factor of \"" + factors[i].level + "\" already exists");
        }
      },
      list(of_level), "Factors of the levels of the topology.");
}

const Document<Calibration>& calibration_document() {
  using C = Calibration;
  static const Document<C> document(
      {.name = "calibration",
       .version = 1,
       .title = "Calibration",
       .help =
           "One factor per mechanism of a prediction, learned from measured runs. Written by stagecraft calibrate."},
      {
          optional("model", &C::model, text(), "Model of the graph it was learned with."),
          optional("device", &C::device, text(),
                   "Device on which that graph was measured; predict refuses graphs of another one."),
          required("compute_factor", &C::compute, positive(), "Factor on forward, backward and update times."),
          required("host_per_action_s", &C::host, not_negative(),
                   "Host time of each forward, backward, weight gradient and update, in addition, seconds."),
          links(),
          required("memory_factor", &C::memory, positive(), "Factor on every part of the peak memory."),
          group<C>("interval",
                   {
                       required("log_half_width", &C::log_half_width, not_negative(),
                                "Half-width on the scale of log(measured / predicted)."),
                       required("declared", &C::width_is_declared, boolean(),
                                "True if there were too few plans to learn it from."),
                   },
                   "The 90 % interval of a step."),
          required("runs", &C::runs, integer(1, kMost), "Measured runs."),
          required("plans", &C::plans, integer(1, kMost), "Different plans among them."),
          required("median_error_before", &C::error_before, not_negative(),
                   "Median error of the runs' steps without factors, a ratio."),
          required("median_error_after", &C::error_after, not_negative(),
                   "The same with factors learned from the other plans; with one plan, from all runs."),
          provenance_field(&C::provenance),
      },
      refuse_invalid<C>);
  return document;
}

}  // namespace

Calibration parse_calibration(const std::string& text, const std::string& file) {
  return calibration_document().parse(text, file);
}
Calibration read_calibration(const std::string& path) { return parse_calibration(read_text(path), path); }
std::string calibration_json(const Calibration& calibration) { return calibration_document().text(calibration); }
DocumentSchema calibration_schema() { return calibration_document().schema(); }

}  // namespace stagecraft::format
