#pragma once

#include <string>

namespace stagecraft::intake {

/// A frame of the module stack: call number `call`, from 0, of the module at `path`.
struct ModuleFrame {
  std::string path;  ///< "layer1.0.conv1"; "" is the whole model
  std::string type;  ///< "torch.nn.modules.conv.Conv2d"
  int call = 0;
  friend bool operator==(const ModuleFrame&, const ModuleFrame&) = default;
};

}  // namespace stagecraft::intake
