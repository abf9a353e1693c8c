#pragma once

#include <string>

#include "costmodel/doctor/doctor.h"
#include "costmodel/format/document_schema.h"

namespace stagecraft::format {

/// The document "stagecraft.diagnosis", ending in a newline.
[[nodiscard]] std::string diagnosis_json(const doctor::Diagnosis& diagnosis);
[[nodiscard]] DocumentSchema diagnosis_schema();

/// Adds the document at `path` to those of its kind: a graph, topology, plan or timeline; "-" is standard input. Throws
/// FormatError as the readers of graph_json.h do, and for other documents.
void read_into(doctor::ExaminedDocuments& documents, const std::string& path);

}  // namespace stagecraft::format
