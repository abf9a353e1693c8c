# stagecraft_allocator: the malloc of the programs that compute, which link it before the C library. tcmalloc is the
# fastest of those that bench/allocators compares. mimalloc reserves memory without checking how much there is, so a
# request that is far too large ends with the OOM killer instead of a message. Without either,
# executor/device/machine/allocator.cpp makes glibc keep freed memory.
set(STAGECRAFT_ALLOCATOR auto CACHE STRING
    "malloc of the programs that compute: mimalloc, tcmalloc, system (glibc), or auto (tcmalloc if it is installed)")
set_property(CACHE STAGECRAFT_ALLOCATOR PROPERTY STRINGS auto mimalloc tcmalloc system)

# Also by the names of the run-time packages, which are enough.
set(_libraries_of_mimalloc mimalloc libmimalloc.so.2)
set(_libraries_of_tcmalloc tcmalloc_minimal libtcmalloc_minimal.so.4)
if(NOT STAGECRAFT_ALLOCATOR MATCHES "^(auto|mimalloc|tcmalloc|system)$")
  message(FATAL_ERROR "STAGECRAFT_ALLOCATOR is \"${STAGECRAFT_ALLOCATOR}\", known are auto, mimalloc, tcmalloc and system")
endif()

add_library(stagecraft_allocator INTERFACE)
if(NOT STAGECRAFT_ALLOCATOR STREQUAL system)
  set(_name ${STAGECRAFT_ALLOCATOR})
  if(_name STREQUAL auto)
    set(_name tcmalloc)
  endif()
  find_library(STAGECRAFT_${_name}_LIBRARY NAMES ${_libraries_of_${_name}})
  mark_as_advanced(STAGECRAFT_${_name}_LIBRARY)
  if(STAGECRAFT_${_name}_LIBRARY)
    # Nothing calls it by name, so the linker would drop it.
    target_link_options(stagecraft_allocator INTERFACE
      "LINKER:--push-state,--no-as-needed,${STAGECRAFT_${_name}_LIBRARY},--pop-state")
    message(STATUS "Allocator of the programs that compute: ${STAGECRAFT_${_name}_LIBRARY}")
  elseif(STAGECRAFT_ALLOCATOR STREQUAL auto)
    message(STATUS "Allocator of the programs that compute: glibc's, because ${_name} is not installed")
  else()
    message(FATAL_ERROR "STAGECRAFT_ALLOCATOR is ${_name}, which is not installed (Debian: libtcmalloc-minimal4, libmimalloc2.0)")
  endif()
endif()
