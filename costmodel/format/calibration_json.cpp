#include "costmodel/format/calibration_json.h"

#include "costmodel/format/cursor.h"
#include "costmodel/format/files/files.h"
#include "costmodel/index.h"

namespace stagecraft::format {
namespace {

constexpr const char* kFormat = "stagecraft.calibration";
constexpr int kVersion = 1;
constexpr int kMost = 1 << 24;

}  // namespace

std::string calibration_json(const Calibration& calibration) {
  Json out = document(kFormat, kVersion);
  if (!calibration.model.empty()) out["model"] = calibration.model;
  if (!calibration.device.empty()) out["device"] = calibration.device;
  out["compute_factor"] = calibration.compute;
  out["host_per_action_s"] = calibration.host.value;
  out["links"] = Json::array();
  for (const auto& [level, factor] : calibration.links)
    out["links"].push_back(Json{{"level", level}, {"time_factor", factor}});
  out["memory_factor"] = calibration.memory;
  out["interval"] = Json{{"log_half_width", calibration.log_half_width}, {"declared", calibration.width_is_declared}};
  out["runs"] = calibration.runs;
  out["plans"] = calibration.plans;
  out["median_error_before"] = calibration.error_before;
  out["median_error_after"] = calibration.error_after;
  if (calibration.provenance != Provenance{}) out["provenance"] = provenance_json(calibration.provenance);
  return dump(out);
}

Calibration parse_calibration(const std::string& text, const std::string& file) {
  const Json json = parse_document(text, file);
  const Cursor root(json, file);
  Fields fields(root);
  check_header(fields, kFormat, kVersion);
  Calibration out;
  if (const auto v = fields.optional("model")) out.model = v->text();
  if (const auto v = fields.optional("device")) out.device = v->text();
  out.compute = fields.required("compute_factor").positive();
  out.host = fields.required("host_per_action_s").seconds();
  const Cursor links = fields.required("links");
  for (std::size_t i = 0; i < links.elements(); ++i) {
    Fields link(links.at(i));
    const Cursor level = link.required("level");
    if (!out.links.emplace(level.text(), link.required("time_factor").positive()).second)
      level.fail("a factor of \"" + level.text() + "\" already exists");
    link.done();
  }
  out.memory = fields.required("memory_factor").positive();
  Fields interval(fields.required("interval"));
  out.log_half_width = interval.required("log_half_width").not_negative();
  out.width_is_declared = interval.required("declared").boolean();
  interval.done();
  out.runs = to_int(fields.required("runs").integer(1, kMost));
  out.plans = to_int(fields.required("plans").integer(1, kMost));
  out.error_before = fields.required("median_error_before").not_negative();
  out.error_after = fields.required("median_error_after").not_negative();
  if (const auto v = fields.optional("provenance")) out.provenance = read_provenance(*v);
  fields.done();
  return validated(root, std::move(out));
}

Calibration read_calibration(const std::string& path) { return parse_calibration(read_text(path), path); }

}  // namespace stagecraft::format
