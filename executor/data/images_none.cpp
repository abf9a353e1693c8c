#include <stdexcept>

#include "costmodel/errors.h"
#include "executor/data/data_source.h"

namespace stagecraft::data {

std::string why_no_images() {
  return "this build has no data source images: configure with -DSTAGECRAFT_WITH_IMAGES=ON, which needs libjpeg-turbo "
         "and libpng";
}

DataSourceKind images_data() {
  return {.name = "images",
          .argument = "FOLDER",
          .needed = "a folder",
          .help = "images in a folder per class (not in this build: STAGECRAFT_WITH_IMAGES is off)",
          .open = [](const std::string&, const model::Model&, std::uint64_t, std::optional<std::uint64_t>)
              -> std::unique_ptr<DataSource> { throw InputError(ErrorKind::NotInBuild, why_no_images()); }};
}

}  // namespace stagecraft::data
