# protozero, which writes and reads protobuf messages. Headers only.
#   Protozero::headers
find_path(Protozero_INCLUDE_DIR protozero/pbf_writer.hpp)
mark_as_advanced(Protozero_INCLUDE_DIR)

include(FindPackageHandleStandardArgs)
find_package_handle_standard_args(Protozero
  REQUIRED_VARS Protozero_INCLUDE_DIR
  REASON_FAILURE_MESSAGE "install Debian's libprotozero-dev, or set Protozero_INCLUDE_DIR to the folder that holds protozero/pbf_writer.hpp")

if(Protozero_FOUND AND NOT TARGET Protozero::headers)
  add_library(Protozero::headers INTERFACE IMPORTED)
  set_target_properties(Protozero::headers PROPERTIES INTERFACE_INCLUDE_DIRECTORIES ${Protozero_INCLUDE_DIR})
endif()
