#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <iostream>

#include "costmodel/command/tool.h"
#include "costmodel/format/escaping.h"
#include "costmodel/format/files/files.h"
#include "costmodel/project/auto.h"
#include "costmodel/project/project.h"

namespace {

namespace fs = std::filesystem;

std::string variable(const char* name) {
  const char* value = std::getenv(name);
  return value == nullptr ? "" : value;
}

/// The folder of this program, where the others are.
fs::path own_folder() { return fs::read_symlink("/proc/self/exe").parent_path(); }

std::optional<std::string> program_of(const std::vector<fs::path>& places, const std::string& verb) {
  for (const fs::path& place : places) {
    std::string program = (place / ("stagecraft-" + verb)).string();
    if (::access(program.c_str(), X_OK) == 0) return program;
  }
  return std::nullopt;
}

/// How the user called us, for commands to be typed: through scripts/stagecraft, or by the program's own name.
std::string call_of(const std::string& called_as, const std::string& verb, bool elsewhere) {
  const auto word = [&](const std::string& called) {
    const bool relative = called.find('/') != std::string::npos && !called.starts_with('/');
    return stagecraft::format::shell_line(
        {relative && elsewhere ? fs::absolute(called).lexically_normal().string() : called});
  };
  if (const std::string front = variable("STAGECRAFT_FRONT"); !front.empty()) return word(front) + " " + verb;
  const std::string name = "stagecraft-auto";
  if (called_as.ends_with(name))
    return word(called_as.substr(0, called_as.size() - name.size()) + "stagecraft-" + verb);
  return word((own_folder() / ("stagecraft-" + verb)).string());
}

}  // namespace

int main(int argc, char** argv) {
  std::string path = "stagecraft.toml";
  bool untrusted = false;
  stagecraft::project::AutoOptions options;
  const auto step = stagecraft::one_of("step", stagecraft::project::step_names());
  return stagecraft::run_tool(
      {"auto",
       "Runs a project: profile, links, plan, predict, run, compare, report. Steps whose inputs have not "
       "changed are skipped, so the command resumes where it stopped.",
       "stagecraft auto stagecraft.toml\n"
       "  stagecraft auto gpt.toml --until predict\n"
       "  stagecraft auto --from plan\n"
       "  stagecraft auto --dry-run > commands.sh\n\n"
       "Steps: profile, links, estimate, plan, predict, run, evaluate, compare, report; only those that the project "
       "needs.\n"
       "Exit status, besides the usual ones below: that of the step that failed; 75 after SIGINT or SIGTERM if the "
       "run\n"
       "saved a checkpoint, else 128 + signal"},
      argc, argv,
      [&](CLI::App& app) {
        app.add_option("FILE", path, "project file, as written by stagecraft init")->capture_default_str();
        app.add_option("--until", options.until, "stop after this step")->check(step)->type_name("STEP");
        app.add_option("--from", options.from, "run this step and all later ones again, and no earlier ones")
            ->check(step)
            ->type_name("STEP");
        app.add_flag("--dry-run", options.dry_run, "print the commands that would be run, as a shell script, and exit");
        app.add_flag("-y,--yes", options.yes, "do not ask before the run");
        stagecraft::add_accept_untrusted(app, untrusted,
                                         "accept times measured on a busy machine, like [cluster] accept_untrusted");
      },
      [&] {
        auto project = stagecraft::project::parse_project(stagecraft::format::read_text(path), path);
        if (untrusted) project.given["cluster"]["accept_untrusted"] = true;
        const fs::path folder = fs::path(path).parent_path();
        const bool elsewhere = !folder.empty() && folder != ".";
        const std::string called_as = argv[0];
        options.shown = call_of(called_as, "auto", false);
        if (path != "stagecraft.toml") options.shown += " " + stagecraft::format::shell_line({path});
        std::map<std::string, std::string> calls;
        for (const std::string& verb : stagecraft::project::step_names())
          calls[verb] = call_of(called_as, verb, elsewhere);
        options.call = [&calls](const std::string& verb) { return calls.at(verb); };
        std::vector<fs::path> places{own_folder()};
        if (const std::string first = variable("STAGECRAFT_BIN"); !first.empty())
          places.insert(places.begin(), fs::absolute(first));
        options.program = [places](const std::string& verb) { return program_of(places, verb); };
        options.find_example = stagecraft::project::example_topology;
        if (elsewhere) {
          if (options.dry_run)
            std::cout << "cd " << stagecraft::format::shell_line({folder.string()}) << "\n" << std::flush;
          fs::current_path(folder);
        }
        return stagecraft::project::do_steps(project, options);
      });
}
