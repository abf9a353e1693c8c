#include "costmodel/project/examples.h"

#include <algorithm>
#include <filesystem>

#include "costmodel/errors.h"
#include "costmodel/format/files/outputs.h"

namespace stagecraft::project {
namespace {

namespace fs = std::filesystem;

/// Where they are installed, and in the source tree, as seen from this program.
std::vector<fs::path> folders() {
  const fs::path program_folder = fs::read_symlink("/proc/self/exe").parent_path();
  return {program_folder / "../share/stagecraft/examples", program_folder / "../../../examples"};
}

/// The topologies of the first folder that exists.
std::vector<fs::path> files() {
  std::vector<fs::path> out;
  for (const fs::path& folder : folders()) {
    if (!fs::is_directory(folder)) continue;
    for (const fs::directory_entry& entry : fs::directory_iterator(folder)) {
      if (entry.path().extension() == ".json" && format::file_kind(entry.path().string()) == "stagecraft.topology")
        out.push_back(entry.path().lexically_normal());
    }
    break;
  }
  std::ranges::sort(out);
  return out;
}

}  // namespace

std::vector<std::string> example_topologies() {
  std::vector<std::string> out;
  for (const fs::path& file : files()) out.push_back(file.stem().string());
  return out;
}

std::string example_topology(const std::string& name) {
  for (const fs::path& file : files()) {
    if (file.stem() == name) return file.string();
  }
  throw InputError(ErrorKind::UnknownName, unknown_name("example", name, example_topologies()));
}

}  // namespace stagecraft::project
