#include "costmodel/format/results/diagnosis_json.h"

#include "costmodel/format/description.h"
#include "costmodel/format/files/files.h"
#include "costmodel/format/graph_json.h"
#include "costmodel/format/plan_json.h"
#include "costmodel/format/timeline_json.h"
#include "costmodel/format/topology_json.h"

namespace stagecraft::format {
namespace {

Notation<doctor::Finding> finding() {
  using F = doctor::Finding;
  return object<F>({
      required("code", &F::code, text(), "Code of the check, such as SC101."),
      required("severity", &F::severity, words("severity", doctor::Severity::Error),
               "Error: the documents cannot be used together. Warning: something is probably wrong."),
      required("file", &F::file, text(), "File that it is about."),
      required("place", &F::place, text(), "JSON pointer into the file; empty: the whole file."),
      required("message", &F::message, text(), "What was found, and what would be right or what to do."),
  });
}

const Document<doctor::Diagnosis>& diagnosis_document() {
  using D = doctor::Diagnosis;
  static const Document<D> document(
      {.name = "diagnosis",
       .version = 1,
       .title = "Diagnosis",
       .help = "Likely mistakes in documents. Written by stagecraft doctor --json."},
      {
          required("files", &D::files, list(text("Path.")), "The files that were examined."),
          required("findings", &D::findings, list(finding()), "What was found, ascending by code."),
      });
  return document;
}

}  // namespace

std::string diagnosis_json(const doctor::Diagnosis& diagnosis) { return diagnosis_document().text(diagnosis); }
DocumentSchema diagnosis_schema() { return diagnosis_document().schema(); }

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
