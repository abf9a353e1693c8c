# Gloo's headers, which c10d's ProcessGroupGloo.hpp includes and the wheel leaves out. Headers only: the code is in
# libtorch_cpu, and a second copy of it must not be linked.
#   GlooHeaders_INCLUDE_DIR
find_path(GlooHeaders_INCLUDE_DIR gloo/config.h)
mark_as_advanced(GlooHeaders_INCLUDE_DIR)

include(FindPackageHandleStandardArgs)
find_package_handle_standard_args(GlooHeaders
  REQUIRED_VARS GlooHeaders_INCLUDE_DIR
  REASON_FAILURE_MESSAGE "install Debian's libgloo-dev, or set GlooHeaders_INCLUDE_DIR to the folder that holds gloo/config.h, or build without LibTorch: -DSTAGECRAFT_WITH_TORCH=OFF")
