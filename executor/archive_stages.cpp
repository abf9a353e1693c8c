#include "costmodel/interchange/convert/archive.h"
#include "executor/intake/export/stage_package.h"
#include "executor/model/stage_layers.h"

namespace stagecraft {

ArchiveStages archive_stages(const Plan& plan, const std::string& path) {
  return stage_package(path, plan.options, [&](const Model& model) { return layers_of_stages(plan, model); });
}

}  // namespace stagecraft
