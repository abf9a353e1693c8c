#include "costmodel/format/results/diagnosis_json.h"

#include "costmodel/format/cursor.h"
#include "costmodel/format/files/files.h"
#include "costmodel/format/graph_json.h"
#include "costmodel/format/plan_json.h"
#include "costmodel/format/timeline_json.h"
#include "costmodel/format/topology_json.h"

namespace stagecraft::format {

std::string diagnosis_json(const doctor::Diagnosis& diagnosis) {
  Json out = document("stagecraft.diagnosis", 1);
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
