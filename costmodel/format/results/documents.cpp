#include "costmodel/format/results/documents.h"

#include "costmodel/errors.h"
#include "costmodel/format/checkpoint_manifest.h"
#include "costmodel/format/graph_json.h"
#include "costmodel/format/plan_json.h"
#include "costmodel/format/prediction_json.h"
#include "costmodel/format/results/accuracy_json.h"
#include "costmodel/format/results/analysis_json.h"
#include "costmodel/format/results/diagnosis_json.h"
#include "costmodel/format/results/evaluation_json.h"
#include "costmodel/format/results/objective_json.h"
#include "costmodel/format/results/plan_list_json.h"
#include "costmodel/format/results/steps_json.h"
#include "costmodel/format/timeline_json.h"
#include "costmodel/format/topology_json.h"

namespace stagecraft::format {

std::vector<DocumentSchema> document_schemas() {
  return {graph_schema(),       topology_schema(),    plan_schema(),        plan_list_schema(),
          objective_schema(),   prediction_schema(),  measurement_schema(), comparison_schema(),
          step_change_schema(), explanation_schema(), whatif_schema(),      plan_comparison_schema(),
          diagnosis_schema(),   calibration_schema(), validation_schema(),  evaluation_schema(),
          checkpoint_schema(),  steps_schema()};
}

DocumentSchema document_schema(const std::string& name) {
  std::vector<std::string> known;
  for (DocumentSchema& one : document_schemas()) {
    if (one.name == name) return std::move(one);
    known.push_back(one.name);
  }
  throw InputError(ErrorKind::UnknownName, unknown_name("document", name, known));
}

}  // namespace stagecraft::format
