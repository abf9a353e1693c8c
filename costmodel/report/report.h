#pragma once

#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "costmodel/accuracy/compare.h"
#include "costmodel/accuracy/validate.h"
#include "costmodel/format/results/plan_list_json.h"
#include "costmodel/from_file.h"
#include "costmodel/graph.h"
#include "costmodel/plan.h"
#include "costmodel/prediction/predict.h"
#include "costmodel/report/drawing.h"
#include "costmodel/timeline.h"
#include "costmodel/topology.h"

namespace stagecraft::report {

/// The documents that a report can include; all are optional.
struct ReportDocuments {
  std::optional<FromFile<Graph>> graph;
  std::optional<FromFile<Topology>> topology;
  std::vector<FromFile<Plan>> plans;
  std::vector<FromFile<Prediction>> predictions;
  std::vector<FromFile<Measurement>> runs;
  std::vector<FromFile<Comparison>> comparisons;
  std::vector<FromFile<format::PlanList>> lists;
  std::optional<FromFile<Validation>> validation;
};

/// Formats that add_document reads, in the order of ReportDocuments.
[[nodiscard]] const std::vector<std::string>& readable_formats();

/// Adds the document in `text` by its "format". Throws FormatError naming `file`: another format (lists those that can
/// be read), a wrong document, a second graph, topology or validation.
void add_document(ReportDocuments& documents, const std::string& text, const std::string& file);

/// For each run, the index of the prediction to show it with: among those with the same ranks and stages, the one with
/// the fewest runs so far, the first if several tie. So runs and predictions given in the same order belong together,
/// and repeated runs belong to a single prediction. Absent if no prediction has its ranks and stages.
[[nodiscard]] std::vector<std::optional<std::size_t>> prediction_of_run(const ReportDocuments& documents);

/// Predicts each plan if there are a graph with times and a topology, but no prediction, and compares each run with its
/// prediction_of_run if there is no comparison. Returns one sentence for each plan that cannot be predicted and each
/// run that cannot be compared. Tells `progress`, if any, which plan or run comes next.
std::vector<std::string> complete(ReportDocuments& documents,
                                  const std::function<void(const std::string&)>& progress = {});

/// A part of the report.
struct Section {
  std::string id;
  std::string title;
  std::string markup;  ///< before the pictures
  std::vector<Picture> pictures;
};

/// The sections that the documents allow, in order. Throws std::invalid_argument, naming the files, for documents that
/// do not belong together: a plan of another graph.
[[nodiscard]] std::vector<Section> sections(const ReportDocuments& documents);

/// "stagecraft 0.1.0, 2026-11-28": the version and the date in UTC.
[[nodiscard]] std::string made_today();

/// The report as one HTML page, complete without a network and without scripts; the same text for the same arguments.
/// `made` says in a line below the title what made it, and when.
[[nodiscard]] std::string report_page(const ReportDocuments& documents, const std::vector<Section>& sections,
                                      const std::string& made = "");

/// What would shorten the step of a prediction, the largest loss first, at most three sentences, without a full stop:
/// "the pipeline is empty for 22.1 % of the step: try more --microbatches". A loss below 5 % of the step, by
/// mean_parts, is not worth one, nor a stage less than 10 % slower than the mean.
[[nodiscard]] std::vector<std::string> next_steps(const Prediction& prediction);

}  // namespace stagecraft::report
