# minizip, which comes with zlib and reads the directories of ZIP archives.
#   Minizip::minizip
find_package(ZLIB QUIET)
find_path(Minizip_INCLUDE_DIR minizip/unzip.h)
find_library(Minizip_LIBRARY minizip)
mark_as_advanced(Minizip_INCLUDE_DIR Minizip_LIBRARY)

include(FindPackageHandleStandardArgs)
find_package_handle_standard_args(Minizip
  REQUIRED_VARS Minizip_LIBRARY Minizip_INCLUDE_DIR ZLIB_FOUND
  REASON_FAILURE_MESSAGE "install Debian's libminizip-dev, or set Minizip_INCLUDE_DIR to the folder that holds minizip/unzip.h and Minizip_LIBRARY to libminizip.so")

if(Minizip_FOUND AND NOT TARGET Minizip::minizip)
  add_library(Minizip::minizip UNKNOWN IMPORTED)
  set_target_properties(Minizip::minizip PROPERTIES
    IMPORTED_LOCATION ${Minizip_LIBRARY}
    INTERFACE_INCLUDE_DIRECTORIES ${Minizip_INCLUDE_DIR}
    INTERFACE_LINK_LIBRARIES ZLIB::ZLIB)
endif()
