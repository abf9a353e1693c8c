#include <chrono>
#include <string>
#include <vector>

#include "costmodel/command/tool.h"
#include "costmodel/doctor/doctor.h"
#include "costmodel/format/files/files.h"
#include "costmodel/format/results/diagnosis_json.h"
#include "costmodel/index.h"
#include "costmodel/text/progress.h"

int main(int argc, char** argv) {
  using stagecraft::doctor::Severity;
  stagecraft::doctor::Diagnosis diagnosis;
  int most_age_days = stagecraft::to_int(stagecraft::doctor::DoctorOptions{}.most_age.count());
  bool strict = false;
  bool json = false;
  bool list = false;
  return stagecraft::run_tool(
      {"doctor",
       "Finds likely mistakes in graphs, topologies, plans and measured timelines: numbers in the wrong unit, "
       "implausible measurements, files that do not belong together.",
       "stagecraft doctor graph.json topology.json plan.json\n  stagecraft doctor --strict topology.json\n\n"
       "Checks:\n" +
           stagecraft::doctor::checks_text()},
      argc, argv,
      [&](CLI::App& app) {
        app.add_option("FILE", diagnosis.files,
                       "graph.json, topology.json, plan.json or measured.json, in any order; several are also compared "
                       "with each other; - is standard input");
        app.add_flag("--strict", strict, "exit with 1 for warnings too");
        app.add_flag("--json", json, "a stagecraft.diagnosis document instead of text");
        app.add_flag("--list", list, "list the checks and exit");
        app.add_option("--max-age-days", most_age_days, "a measurement is stale if it is older")
            ->capture_default_str()
            ->transform(stagecraft::integer(0));
      },
      [&] {
        if (list) {
          stagecraft::format::write_text("-", stagecraft::doctor::checks_text());
          return 0;
        }
        if (diagnosis.files.empty()) throw CLI::RequiredError("FILE");
        stagecraft::doctor::ExaminedDocuments documents;
        stagecraft::StepProgress progress("examining");
        for (const std::string& file : diagnosis.files) {
          progress.tell("reading " + file);
          stagecraft::format::read_into(documents, file);
        }
        const auto today = std::chrono::floor<std::chrono::days>(std::chrono::system_clock::now());
        diagnosis.findings = diagnose(documents, {today, std::chrono::days(most_age_days), progress.teller()});
        progress.end();
        stagecraft::format::write_text(
            "-", json ? stagecraft::format::diagnosis_json(diagnosis) : diagnosis_text(diagnosis));
        const bool fails = count(diagnosis, Severity::Error) > 0 || (strict && count(diagnosis, Severity::Warning) > 0);
        return fails ? 1 : 0;
      });
}
