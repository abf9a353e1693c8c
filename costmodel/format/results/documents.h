#pragma once

#include <string>
#include <vector>

#include "costmodel/format/document_schema.h"

namespace stagecraft::format {

/// Those of all documents, in the order of the work.
[[nodiscard]] std::vector<DocumentSchema> document_schemas();
/// That of the document `name`. Throws std::invalid_argument listing the names.
[[nodiscard]] DocumentSchema document_schema(const std::string& name);

}  // namespace stagecraft::format
