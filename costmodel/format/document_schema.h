#pragma once

#include <string>

namespace stagecraft::format {

/// What documents of one format consist of, for other programs.
struct DocumentSchema {
  std::string name;  ///< "plan", of the format "stagecraft.plan"
  std::string help;  ///< what the document is, in a few sentences
  std::string text;  ///< its JSON Schema, ending in a newline
};

}  // namespace stagecraft::format
