#include <stdexcept>

#include "costmodel/interchange/convert/archive.h"

namespace stagecraft {

ArchiveStages archive_stages(const Plan& /*plan*/, const std::string& path) {
  throw std::invalid_argument(path +
                              ": is an archive, and this program was built without LibTorch; build with "
                              "-DSTAGECRAFT_WITH_TORCH=ON");
}

}  // namespace stagecraft
