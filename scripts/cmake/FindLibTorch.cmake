# LibTorch from the PyPI wheel (or any LibTorch tree) as imported targets, without the CUDA toolkit that its own
# TorchConfig.cmake asks for.
#   LibTorch::cpu   libtorch_cpu and libc10 with their headers, and the {fmt} of these headers
# Looks in STAGECRAFT_TORCH (CMake or environment variable: the folder with include/ and lib/, for a wheel
# .../site-packages/torch), then in .venv of the source tree.
set(_hints)
if(STAGECRAFT_TORCH)
  list(APPEND _hints ${STAGECRAFT_TORCH})
elseif(DEFINED ENV{STAGECRAFT_TORCH})
  list(APPEND _hints $ENV{STAGECRAFT_TORCH})
else()
  file(GLOB _hints ${CMAKE_SOURCE_DIR}/.venv/lib/python3*/site-packages/torch)
endif()

find_path(LibTorch_INCLUDE_DIR ATen/ATen.h HINTS ${_hints} PATH_SUFFIXES include NO_DEFAULT_PATH)
find_library(LibTorch_CPU_LIBRARY torch_cpu HINTS ${_hints} PATH_SUFFIXES lib NO_DEFAULT_PATH)
find_library(LibTorch_C10_LIBRARY c10 HINTS ${_hints} PATH_SUFFIXES lib NO_DEFAULT_PATH)
mark_as_advanced(LibTorch_INCLUDE_DIR LibTorch_CPU_LIBRARY LibTorch_C10_LIBRARY)
if(LibTorch_INCLUDE_DIR AND EXISTS ${LibTorch_INCLUDE_DIR}/torch/headeronly/version.h)
  file(STRINGS ${LibTorch_INCLUDE_DIR}/torch/headeronly/version.h _lines REGEX "#define TORCH_VERSION_(MAJOR|MINOR|PATCH) ")
  string(REGEX REPLACE "#define TORCH_VERSION_[A-Z]+ ([0-9]+);?" "\\1." _numbers "${_lines}")
  string(REGEX REPLACE "\\.$" "" LibTorch_VERSION "${_numbers}")
endif()

string(REPLACE ";" ", " _looked "${_hints}")  # a list would end the message
include(FindPackageHandleStandardArgs)
find_package_handle_standard_args(LibTorch
  REQUIRED_VARS LibTorch_CPU_LIBRARY LibTorch_C10_LIBRARY LibTorch_INCLUDE_DIR VERSION_VAR LibTorch_VERSION
  REASON_FAILURE_MESSAGE "looked in: ${_looked}. Run scripts/setup, or set STAGECRAFT_TORCH=DIR (the folder with include/ and lib/), or build without it: -DSTAGECRAFT_WITH_TORCH=OFF")

if(LibTorch_FOUND AND NOT TARGET LibTorch::cpu)
  add_library(LibTorch::c10 SHARED IMPORTED)
  set_target_properties(LibTorch::c10 PROPERTIES IMPORTED_LOCATION ${LibTorch_C10_LIBRARY})
  # The wheel's include folder has its own, newer {fmt}, whose library it does not export.
  add_library(libtorch_fmt STATIC ${CMAKE_CURRENT_LIST_DIR}/libtorch_fmt.cpp)
  target_include_directories(libtorch_fmt SYSTEM PRIVATE ${LibTorch_INCLUDE_DIR})
  # Without NDEBUG, at::RecordFunction has a member that the library, which was built with it, does not have.
  add_library(LibTorch::cpu SHARED IMPORTED)
  set_target_properties(LibTorch::cpu PROPERTIES
    IMPORTED_LOCATION ${LibTorch_CPU_LIBRARY}
    INTERFACE_INCLUDE_DIRECTORIES "${LibTorch_INCLUDE_DIR};${LibTorch_INCLUDE_DIR}/torch/csrc/api/include"
    INTERFACE_COMPILE_DEFINITIONS "$<$<NOT:$<CONFIG:Release,MinSizeRel>>:NDEBUG>"
    INTERFACE_LINK_LIBRARIES "LibTorch::c10;libtorch_fmt")
endif()
