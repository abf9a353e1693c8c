#include "costmodel/format/results/diagnosis_json.h"

#include "costmodel/format/cursor.h"
#include "costmodel/format/files/files.h"
#include "costmodel/format/json.h"

namespace stagecraft::format {
namespace {

constexpr const char* kFormat = "stagecraft.diagnosis";
constexpr int kVersion = 1;

doctor::Finding read_finding(const Cursor& at) {
  Fields fields(at);
  doctor::Finding out;
  out.code = fields.required("code").text();
  const Cursor severity = fields.required("severity");
  const std::string word = severity.text();
  const std::string warning = to_string(doctor::Severity::Warning);
  const std::string error = to_string(doctor::Severity::Error);
  if (word != warning && word != error) severity.fail(unknown_name("severity", word, {warning, error}));
  out.severity = word == error ? doctor::Severity::Error : doctor::Severity::Warning;
  out.file = fields.required("file").text();
  out.place = fields.required("place").text();
  out.message = fields.required("message").text();
  fields.done();
  return out;
}

}  // namespace

std::string diagnosis_json(const doctor::Diagnosis& diagnosis) {
  Json out = document(kFormat, kVersion);
  out["files"] = diagnosis.files;
  out["findings"] = Json::array();
  for (const doctor::Finding& finding : diagnosis.findings) {
    out["findings"].push_back(Json{{"code", finding.code},
                                   {"severity", to_string(finding.severity)},
                                   {"file", finding.file},
                                   {"place", finding.place},
                                   {"message", finding.message}});
  }
  return dump(out);
}

doctor::Diagnosis parse_diagnosis(const std::string& text, const std::string& file) {
  const Json json = parse_document(text, file);
  Fields fields(Cursor(json, file));
  check_header(fields, kFormat, kVersion);
  doctor::Diagnosis out;
  out.files = fields.required("files").list([](const Cursor& c) { return c.text(); });
  out.findings = fields.required("findings").list(read_finding);
  fields.done();
  return out;
}

void read_into(doctor::ExaminedDocuments& documents, const std::string& path) {
  const std::string text = read_text(path);
  const Json json = parse_document(text, path);
  Fields fields(Cursor(json, path));
  const Cursor format = fields.required("format");
  const std::string kind = format.text();
  if (kind == "stagecraft.graph") {
    documents.graphs.push_back({path, parse_graph(text, path)});
  } else if (kind == "stagecraft.topology") {
    documents.topologies.push_back({path, parse_topology(text, path)});
  } else if (kind == "stagecraft.plan") {
    documents.plans.push_back({path, parse_plan(text, path)});
  } else if (kind == "stagecraft.timeline") {
    documents.measurements.push_back({path, parse_measurement(text, path)});
  } else {
    format.fail_type("stagecraft.graph, stagecraft.topology, stagecraft.plan or stagecraft.timeline",
                     ErrorKind::OtherDocument);
  }
}

}  // namespace stagecraft::format
