# Apache Arrow's C++ libraries as they come with pyarrow from PyPI.
#   ArrowLibraries::parquet      libparquet and libarrow, with their headers
# Looks in STAGECRAFT_PYARROW (the folder with include/ and libarrow.so.*, for a wheel .../site-packages/pyarrow), then in
# .venv of the source tree.
set(_hints ${STAGECRAFT_PYARROW})
if(NOT _hints)
  file(GLOB _hints ${CMAKE_SOURCE_DIR}/.venv/lib/python3*/site-packages/pyarrow)
endif()

find_path(ArrowLibraries_INCLUDE_DIR parquet/arrow/reader.h HINTS ${_hints} PATH_SUFFIXES include NO_DEFAULT_PATH)
# The wheel has no libarrow.so, only the names with a version.
foreach(_library arrow parquet)
  if(ArrowLibraries_INCLUDE_DIR AND NOT ArrowLibraries_${_library}_LIBRARY)
    file(GLOB _found ${ArrowLibraries_INCLUDE_DIR}/../lib${_library}.so.*)
    if(_found)
      list(GET _found 0 _found)
      file(REAL_PATH ${_found} _found)
      set(ArrowLibraries_${_library}_LIBRARY ${_found} CACHE FILEPATH "lib${_library}")
    endif()
  endif()
endforeach()
mark_as_advanced(ArrowLibraries_INCLUDE_DIR ArrowLibraries_arrow_LIBRARY ArrowLibraries_parquet_LIBRARY)

string(REPLACE ";" ", " _looked "${_hints}")
include(FindPackageHandleStandardArgs)
find_package_handle_standard_args(ArrowLibraries
  REQUIRED_VARS ArrowLibraries_parquet_LIBRARY ArrowLibraries_arrow_LIBRARY ArrowLibraries_INCLUDE_DIR
  REASON_FAILURE_MESSAGE "looked in: ${_looked}. Run scripts/setup, or set STAGECRAFT_PYARROW=DIR (the folder of pyarrow with include/), or build without it: -DSTAGECRAFT_WITH_ARROW=OFF")

if(ArrowLibraries_FOUND AND NOT TARGET ArrowLibraries::parquet)
  add_library(ArrowLibraries::arrow SHARED IMPORTED)
  set_target_properties(ArrowLibraries::arrow PROPERTIES IMPORTED_LOCATION ${ArrowLibraries_arrow_LIBRARY})
  add_library(ArrowLibraries::parquet SHARED IMPORTED)
  set_target_properties(ArrowLibraries::parquet PROPERTIES
    IMPORTED_LOCATION ${ArrowLibraries_parquet_LIBRARY}
    INTERFACE_INCLUDE_DIRECTORIES ${ArrowLibraries_INCLUDE_DIR}
    INTERFACE_LINK_LIBRARIES ArrowLibraries::arrow)
endif()
