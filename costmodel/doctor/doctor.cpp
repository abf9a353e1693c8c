#include "costmodel/doctor/doctor.h"

#include <fmt/format.h>

#include <algorithm>

namespace stagecraft::doctor {

const char* to_string(Severity severity) { return severity == Severity::Error ? "error" : "warning"; }

const std::vector<DoctorCheck>& checks() {
  static const std::vector<DoctorCheck> all = [] {
    std::vector<DoctorCheck> out;
    for (const auto& part : {link_checks(), measurement_checks(), match_checks()})
      out.insert(out.end(), part.begin(), part.end());
    return out;
  }();
  return all;
}

std::vector<Finding> diagnose(const ExaminedDocuments& documents, const DoctorOptions& options) {
  std::vector<Finding> out;
  for (const DoctorCheck& check : checks()) {
    if (options.progress) options.progress(check.summary);
    check.find(documents, options, [&](const std::string& file, const std::string& place, const std::string& message) {
      out.push_back({check.code, check.severity, file, place, message});
    });
  }
  return out;
}

std::ptrdiff_t count(const Diagnosis& diagnosis, Severity severity) {
  return std::ranges::count(diagnosis.findings, severity, &Finding::severity);
}

std::string diagnosis_text(const Diagnosis& diagnosis) {
  std::string out;
  for (const Finding& finding : diagnosis.findings) {
    out += fmt::format("{} {} {}: {}{}\n", to_string(finding.severity), finding.code, finding.file,
                       finding.place.empty() ? "" : finding.place + ": ", finding.message);
  }
  const auto counted = [](std::ptrdiff_t number, const char* what) {
    return fmt::format("{} {}{}", number, what, number == 1 ? "" : "s");
  };
  return out + fmt::format("{}: {}, {}\n", counted(std::ssize(diagnosis.files), "file"),
                           counted(count(diagnosis, Severity::Error), "error"),
                           counted(count(diagnosis, Severity::Warning), "warning"));
}

std::string checks_text() {
  std::string out;
  for (const DoctorCheck& check : checks())
    out += fmt::format("{} {:<7} {}\n", check.code, to_string(check.severity), check.summary);
  return out;
}

}  // namespace stagecraft::doctor
