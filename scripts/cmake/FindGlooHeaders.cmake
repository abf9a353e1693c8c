# Gloo's headers, which c10d's ProcessGroupGloo.hpp includes and the wheel omits. Headers only: the code is in
# libtorch_cpu, and a second copy of it must not be linked.
#   GlooHeaders::headers
find_path(GlooHeaders_INCLUDE_DIR gloo/config.h)
mark_as_advanced(GlooHeaders_INCLUDE_DIR)

include(FindPackageHandleStandardArgs)
find_package_handle_standard_args(GlooHeaders
  REQUIRED_VARS GlooHeaders_INCLUDE_DIR
  REASON_FAILURE_MESSAGE "install Debian's libgloo-dev, or set GlooHeaders_INCLUDE_DIR to the folder that holds gloo/config.h, or build without LibTorch: -DSTAGECRAFT_WITH_TORCH=OFF")

if(GlooHeaders_FOUND AND NOT TARGET GlooHeaders::headers)
  add_library(GlooHeaders::headers INTERFACE IMPORTED)
  set_target_properties(GlooHeaders::headers PROPERTIES INTERFACE_INCLUDE_DIRECTORIES ${GlooHeaders_INCLUDE_DIR})
endif()
