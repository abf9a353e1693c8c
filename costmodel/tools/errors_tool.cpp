#include <string>
#include <vector>

#include "costmodel/command/tool.h"
#include "costmodel/doctor/doctor.h"
#include "costmodel/errors.h"
#include "costmodel/format/files/files.h"

namespace {

/// What a code means; one of three digits is a check of doctor.
std::string explanation(const std::string& code) {
  for (const stagecraft::doctor::DoctorCheck& check : stagecraft::doctor::checks()) {
    if (check.code == code) return code + ": found by stagecraft doctor: " + check.summary + "\n";
  }
  return stagecraft::entry_text(stagecraft::error_entry(code));
}

}  // namespace

int main(int argc, char** argv) {
  std::vector<std::string> codes;
  bool markdown = false;
  return stagecraft::run_tool(
      {"errors",
       "Explains the codes at the end of error messages: what happened, why, and what to do. Lists all codes if none "
       "is given.",
       "stagecraft errors SC2102\n  stagecraft errors"},
      argc, argv,
      [&](CLI::App& app) {
        app.add_option("CODE", codes, "as in the message, such as SC2102; codes of doctor too");
        app.add_flag("--markdown", markdown, "all codes as a page of Markdown")->excludes("CODE");
      },
      [&] {
        std::string out = markdown        ? stagecraft::catalogue_markdown()
                          : codes.empty() ? stagecraft::catalogue_text()
                                          : "";
        for (const std::string& code : codes) out += (out.empty() ? "" : "\n") + explanation(code);
        stagecraft::format::write_text("-", out);
        return 0;
      });
}
