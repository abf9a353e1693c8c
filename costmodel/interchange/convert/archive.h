#pragma once

#include <functional>
#include <map>
#include <string>

#include "costmodel/format/files/folder.h"
#include "costmodel/interchange/convert/python_package.h"
#include "costmodel/plan.h"

namespace stagecraft::interchange {

/// An exported model in stages.
struct ArchiveStages {
  PythonPackage package;
  std::map<std::string, format::WriteFile> archives;  ///< file name -> "stageN.pt2", which the package reads
};

/// Whether `path` begins as an archive does. False if it is absent.
[[nodiscard]] bool is_archive(const std::string& path);

/// The stages of `plan` for the archive of torch.export at `path`; the plan's options define its layers. Throws
/// FormatError for a file that cannot be read or run, std::invalid_argument for a plan that does not fit the model.
/// Operators need LibTorch, so the implementation is in the executor.
using ArchiveStager = std::function<ArchiveStages(const Plan& plan, const std::string& path)>;

}  // namespace stagecraft::interchange
