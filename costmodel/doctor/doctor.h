#pragma once

#include <chrono>
#include <cstddef>
#include <functional>
#include <string>
#include <vector>

#include "costmodel/from_file.h"
#include "costmodel/graph.h"
#include "costmodel/plan.h"
#include "costmodel/timeline.h"
#include "costmodel/topology.h"

// Likely mistakes in documents that are valid: a number in the wrong unit, an implausible measurement, files
// that do not belong together.
// The parts of checks().

namespace stagecraft::doctor {

/// Error: the documents cannot be used together. Warning: something is probably wrong.
enum class Severity { Warning, Error };
[[nodiscard]] const char* to_string(Severity severity);

/// Something that is probably wrong.
struct Finding {
  std::string code;  ///< of the check, "SC101"
  Severity severity = Severity::Warning;
  std::string file;
  std::string place;    ///< JSON pointer into the file; empty: the whole file
  std::string message;  ///< what was found, and what would be right or what to do
  friend bool operator==(const Finding&, const Finding&) = default;
};

/// Documents to examine together.
struct ExaminedDocuments {
  std::vector<FromFile<Graph>> graphs;
  std::vector<FromFile<Topology>> topologies;
  std::vector<FromFile<Plan>> plans;
  std::vector<FromFile<Measurement>> measurements;
};

struct DoctorOptions {
  std::chrono::sys_days today;                            ///< UTC
  std::chrono::days most_age{90};                         ///< a measurement that is older is stale
  std::function<void(const std::string&)> progress = {};  ///< told what is looked for next: DoctorCheck::summary
};

/// Takes a finding of one check: file, place and message.
using Report = std::function<void(const std::string& file, const std::string& place, const std::string& message)>;

/// One check. Its code never changes its meaning, and is not used again if the check is dropped.
struct DoctorCheck {
  std::string code;
  Severity severity = Severity::Warning;
  std::string summary;  ///< what it finds, one line
  std::function<void(const ExaminedDocuments&, const DoctorOptions&, const Report&)> find;
};

/// All checks, ascending by code: SC1.. of links and devices, SC2.. of measurements, SC3.. of documents together.
[[nodiscard]] const std::vector<DoctorCheck>& checks();

/// What the checks find, ascending by code. A plan is compared with the given graphs and topologies, and is wrong only
/// if it fits none of them.
[[nodiscard]] std::vector<Finding> diagnose(const ExaminedDocuments& documents, const DoctorOptions& options);

/// Files that were examined and what was found in them.
struct Diagnosis {
  std::vector<std::string> files;
  std::vector<Finding> findings;
  friend bool operator==(const Diagnosis&, const Diagnosis&) = default;
};

/// Number of findings of this severity.
[[nodiscard]] std::ptrdiff_t count(const Diagnosis& diagnosis, Severity severity);

/// "warning SC101 topology.json: /levels/0/bandwidth_bytes_per_s: ...", one line per finding; then a line that counts
/// files, errors and warnings. The document is format/results/diagnosis_json.h.
[[nodiscard]] std::string diagnosis_text(const Diagnosis& diagnosis);

/// One line per check: code, severity, summary.
[[nodiscard]] std::string checks_text();

// The parts of checks().

/// Numbers of links and devices that no machine has, or that contradict each other.
[[nodiscard]] std::vector<DoctorCheck> link_checks();
/// Implausible measurements.
[[nodiscard]] std::vector<DoctorCheck> measurement_checks();
/// Documents that do not belong together.
[[nodiscard]] std::vector<DoctorCheck> match_checks();

}  // namespace stagecraft::doctor
