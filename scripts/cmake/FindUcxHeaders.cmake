# UCX's headers. The library is loaded at run time.
#   UcxHeaders::headers
find_path(UcxHeaders_INCLUDE_DIR ucp/api/ucp.h)
mark_as_advanced(UcxHeaders_INCLUDE_DIR)

include(FindPackageHandleStandardArgs)
find_package_handle_standard_args(UcxHeaders
  REQUIRED_VARS UcxHeaders_INCLUDE_DIR
  REASON_FAILURE_MESSAGE "install Debian's libucx-dev, or set UcxHeaders_INCLUDE_DIR to the folder that holds ucp/api/ucp.h, or build without UCX: -DSTAGECRAFT_WITH_UCX=OFF")

if(UcxHeaders_FOUND AND NOT TARGET UcxHeaders::headers)
  add_library(UcxHeaders::headers INTERFACE IMPORTED)
  set_target_properties(UcxHeaders::headers PROPERTIES INTERFACE_INCLUDE_DIRECTORIES ${UcxHeaders_INCLUDE_DIR})
endif()
