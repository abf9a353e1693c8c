#include <string>

#include "costmodel/command/convert_command.h"
#include "executor/intake/export/stage_package.h"
#include "executor/model/model.h"

int main(int argc, char** argv) {
  const auto archive_stages = [](const stagecraft::Plan& plan, const std::string& path) {
    return stagecraft::intake::stage_package(path, plan.options, [&](const stagecraft::model::Model& model) {
      return stagecraft::model::layers_of_stages(plan, model);
    });
  };
  return stagecraft::run_convert_command(argc, argv, archive_stages);
}
