#include "costmodel/format/json_string.h"

#include <nlohmann/json.hpp>

#include "costmodel/format/files/utf8.h"

namespace stagecraft::format {

std::string json_string(std::string_view text) { return nlohmann::json(valid_utf8(text)).dump(); }

}  // namespace stagecraft::format
