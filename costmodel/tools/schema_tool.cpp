#include <fmt/format.h>

#include <string>

#include "costmodel/command/tool.h"
#include "costmodel/format/files/files.h"
#include "costmodel/format/results/documents.h"

namespace {

/// A line for each document: its name and the first sentence about it.
std::string list_text() {
  std::string out;
  for (const stagecraft::format::DocumentSchema& schema : stagecraft::format::document_schemas())
    out += fmt::format("{:<12} {}\n", schema.name, schema.help.substr(0, (schema.help + " ").find(". ")));
  return out;
}

}  // namespace

int main(int argc, char** argv) {
  std::string name;
  return stagecraft::run_tool(
      {"schema",
       "Prints the JSON Schema of a document, which describes every key. Lists the documents if none is given.",
       "stagecraft schema plan\n  stagecraft schema"},
      argc, argv, [&](CLI::App& app) { app.add_option("DOCUMENT", name, "as in the list, such as plan"); },
      [&] {
        stagecraft::format::write_text("-",
                                       name.empty() ? list_text() : stagecraft::format::document_schema(name).text);
        return 0;
      });
}
