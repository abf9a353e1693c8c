#pragma once

#include "costmodel/interchange/convert/python_package.h"

namespace stagecraft {

/// The main function of stagecraft-convert. `archive_stages` splits archives of torch.export; without it they are
/// refused, naming the option that builds it.
[[nodiscard]] int run_convert_command(int argc, char** argv, const interchange::ArchiveStager& archive_stages);

}  // namespace stagecraft
