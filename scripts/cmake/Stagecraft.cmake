# Settings of all our targets: language, warnings, sanitizers.
add_library(stagecraft_options INTERFACE)
target_compile_features(stagecraft_options INTERFACE cxx_std_20)
target_compile_options(stagecraft_options INTERFACE -Wall -Wextra -Wpedantic -Wshadow -Wnon-virtual-dtor -Wconversion
                       -Wsign-conversion
                       # False positives of g++ 12 in std::string (GCC bug 105651); the last two it stops
                       # forgiving a system header once that is precompiled.
                       -Wno-restrict -Wno-stringop-overflow -Wno-array-bounds)
# To collect its garbage rarely saves g++ a tenth of its time, for up to half a GiB of memory. clang-tidy, which reads the
# commands without precompiled headers, doesn't know the option.
if(STAGECRAFT_PRECOMPILE)
  target_compile_options(stagecraft_options INTERFACE $<$<CXX_COMPILER_ID:GNU>:--param=ggc-min-heapsize=524288>)
endif()
# A program that needs one function of a file, or of a batch of files (STAGECRAFT_UNITY), leaves out the others.
target_compile_options(stagecraft_options INTERFACE -ffunction-sections -fdata-sections)
target_link_options(stagecraft_options INTERFACE -Wl,--gc-sections)
# What a source keeps to itself may have members that it keeps to itself; in a batch g++ takes it for a header.
if(STAGECRAFT_UNITY)
  target_compile_options(stagecraft_options INTERFACE $<$<CXX_COMPILER_ID:GNU>:-Wno-subobject-linkage>)
endif()
if(STAGECRAFT_WARNINGS_AS_ERRORS)
  target_compile_options(stagecraft_options INTERFACE -Werror)
endif()
if(STAGECRAFT_SANITIZE)
  set(_sanitizers_of_address address,undefined)
  set(_sanitizers_of_thread thread)
  set(_sanitizers ${_sanitizers_of_${STAGECRAFT_SANITIZE}})
  # Instrumented, std::regex looks uninitialised to g++ 12. The check of dynamic types needs the type information of all
  # classes, which LibTorch doesn't export.
  target_compile_options(stagecraft_options INTERFACE -fsanitize=${_sanitizers} -fno-sanitize=vptr -fno-omit-frame-pointer
                                                      -Wno-maybe-uninitialized)
  target_link_options(stagecraft_options INTERFACE -fsanitize=${_sanitizers})
endif()

# Headers that most files of a room include, parsed once. A file still includes what it uses: headers are verified alone,
# and -DSTAGECRAFT_PRECOMPILE=OFF builds without.
set(STAGECRAFT_STANDARD_HEADERS <algorithm> <chrono> <functional> <map> <memory> <optional> <set> <span> <string> <variant>
                                <vector>)
# To load a precompiled header takes 0.3 s with tensors, 0.7 s with operators too, 1.9 s with all of autograd. Every header
# of ATen/ops includes ATen/Context.h.
set(STAGECRAFT_TENSOR_HEADERS <ATen/Context.h> <ATen/core/Tensor.h>)
set(STAGECRAFT_OPERATOR_HEADERS <ATen/Context.h> <ATen/core/Tensor.h> <ATen/core/dispatch/Dispatcher.h> <ATen/core/ivalue.h>)
set(STAGECRAFT_TEST_HEADERS <gmock/gmock.h> <gtest/gtest.h>)

# stagecraft_precompile(TARGET HEADERS ...): parses these headers once for all files of the target.
function(stagecraft_precompile target)
  cmake_parse_arguments(ARG "" "" "HEADERS" ${ARGN})
  if(STAGECRAFT_PRECOMPILE AND ARG_HEADERS)
    target_precompile_headers(${target} PRIVATE ${ARG_HEADERS})
  endif()
endfunction()

# stagecraft_share_precompiled(TARGET PROPERTY HEADERS...): the first target of a kind, which the global property names, parses
# the headers for all others. Libraries and programs differ in kind: -fPIC and -fPIE.
function(stagecraft_share_precompiled target property)
  if(STAGECRAFT_PRECOMPILE)
    get_property(_first GLOBAL PROPERTY ${property})
    if(_first)
      target_precompile_headers(${target} REUSE_FROM ${_first})
    else()
      target_precompile_headers(${target} PRIVATE ${ARGN})
      set_property(GLOBAL PROPERTY ${property} ${target})
    endif()
  endif()
endfunction()

# stagecraft_includes(HEADER RESULT): what the header includes, itself or through our headers: "<map>" or "costmodel/graph.h".
# As of the last configuration, of which scripts/setup makes one each time.
function(stagecraft_includes header result)
  string(MAKE_C_IDENTIFIER "STAGECRAFT_INCLUDES_${header}" _property)
  get_property(_known GLOBAL PROPERTY ${_property} SET)
  if(NOT _known)
    set(_all)
    file(STRINGS ${CMAKE_SOURCE_DIR}/${header} _lines REGEX "^#include ")
    foreach(_line IN LISTS _lines)
      if(_line MATCHES "(<.+>)")
        list(APPEND _all ${CMAKE_MATCH_1})
      elseif(_line MATCHES "\"(.+)\"" AND EXISTS ${CMAKE_SOURCE_DIR}/${CMAKE_MATCH_1})
        set(_inner ${CMAKE_MATCH_1})
        stagecraft_includes(${_inner} _below)
        list(APPEND _all ${_inner} ${_below})
      endif()
    endforeach()
    list(REMOVE_DUPLICATES _all)
    set_property(GLOBAL PROPERTY ${_property} "${_all}")
  endif()
  get_property(_all GLOBAL PROPERTY ${_property})
  set(${result} "${_all}" PARENT_SCOPE)
endfunction()

# Headers are verified in groups: each is compiled by itself, with what all of its group include precompiled. What that
# declares, the header has anyway. A header belongs to the first group all of whose headers it includes; those of no group
# are verified by CMake's all_verify_interface_header_sets.
set(STAGECRAFT_HEADER_GROUPS bound_model operators tensors prediction bound_plan graph standard)
set(STAGECRAFT_GROUP_bound_model executor/run/binding/bound_model.h)
set(STAGECRAFT_GROUP_operators <ATen/core/ivalue.h>)
set(STAGECRAFT_GROUP_tensors <ATen/core/Tensor.h>)
set(STAGECRAFT_GROUP_prediction costmodel/prediction/predict.h)
set(STAGECRAFT_GROUP_bound_plan costmodel/bound_plan.h)
set(STAGECRAFT_GROUP_graph costmodel/graph.h)
set(STAGECRAFT_GROUP_standard <map> <optional> <string> <vector>)

# stagecraft_header_group(HEADER RESULT): the header's group; empty: none.
function(stagecraft_header_group header result)
  stagecraft_includes(${header} _includes)
  set(${result} "" PARENT_SCOPE)
  foreach(_group IN LISTS STAGECRAFT_HEADER_GROUPS)
    set(_missing ${STAGECRAFT_GROUP_${_group}})
    list(REMOVE_ITEM _missing ${_includes})
    if(NOT _missing)
      set(${result} ${_group} PARENT_SCOPE)
      break()
    endif()
  endforeach()
endfunction()

add_custom_target(verify_header_groups)
# stagecraft_verify_group(TARGET GROUP HEADERS...): paths from the root.
function(stagecraft_verify_group target group)
  set(_files)
  foreach(_header IN LISTS ARGN)
    set(_file ${CMAKE_BINARY_DIR}/verified_headers/${_header}.cpp)
    file(CONFIGURE OUTPUT ${_file} CONTENT "#include \"${_header}\"\n")
    list(APPEND _files ${_file})
  endforeach()
  if(_files)
    set(_name ${target}_verify_${group})
    add_library(${_name} OBJECT EXCLUDE_FROM_ALL ${_files})
    target_link_libraries(${_name} PRIVATE ${target})
    add_dependencies(verify_header_groups ${_name})
    list(TRANSFORM STAGECRAFT_GROUP_${group} REPLACE "^([^<].*)$" "<\\1>" OUTPUT_VARIABLE _precompiled)
    stagecraft_share_precompiled(${_name} STAGECRAFT_FIRST_OF_GROUP_${group} ${_precompiled})
  endif()
endfunction()

# For code in which no search, simulation or step spends its time: command lines, documents, reports, other programs'
# formats, readers of model files. It compiles a quarter faster. std::regex then looks uninitialised to g++ 12.
set(STAGECRAFT_ONCE_OPTIONS $<$<CONFIG:Release>:-Og> $<$<CONFIG:Release>:-Wno-maybe-uninitialized>)

# stagecraft_names(SOURCE DEFINED USED): the names that a source defines outside of headers and functions, and those that
# it takes from other namespaces, each with its namespace. As of the last configuration.
function(stagecraft_names source defined used)
  file(READ ${source} _text)
  # Lists of CMake know semicolons and brackets.
  string(REPLACE ";" "~" _text "${_text}")
  string(REPLACE "[" "{" _text "${_text}")
  string(REPLACE "]" "}" _text "${_text}")
  string(REGEX MATCHALL "\n[A-Za-z][^\n]*" _lines "${_text}")
  set(_defined)
  set(_used)
  foreach(_line IN LISTS _lines)
    if(_line MATCHES "^\n(TEST|TYPED_TEST|INSTANTIATE|BENCHMARK|namespace|return|template|extern|static_assert)")
      continue()
    elseif(_line MATCHES "^\nusing :*([A-Za-z0-9_:]+::([A-Za-z0-9_]+))~")
      list(APPEND _used "${CMAKE_MATCH_2}=${CMAKE_MATCH_1}")
    elseif(_line MATCHES "^\n(enum class|enum|struct|class|union) ([A-Za-z0-9_]+)")
      list(APPEND _defined ${CMAKE_MATCH_2})
    elseif(_line MATCHES "^\nusing ([A-Za-z0-9_]+) =")
      list(APPEND _defined ${CMAKE_MATCH_1})
    elseif(_line MATCHES "^\nMATCHER[A-Z0-9_]*\\(([A-Za-z0-9_]+)")
      list(APPEND _defined ${CMAKE_MATCH_1})
    elseif(_line MATCHES "^\n[^(={]*[ &*]([A-Za-z0-9_]+)\\(")  # a function
      list(APPEND _defined ${CMAKE_MATCH_1})
    elseif(_line MATCHES "^\n[^(={~]*[ &*]([A-Za-z0-9_]+)( =|{|~)")  # a variable
      list(APPEND _defined ${CMAKE_MATCH_1})
    endif()
  endforeach()
  set(${defined} ${_defined} PARENT_SCOPE)
  set(${used} ${_used} PARENT_SCOPE)
endfunction()

# stagecraft_collide(RESULT NAMES USED OTHER_NAMES OTHER_USED): whether two sources with these names, as of stagecraft_names,
# cannot be compiled together. Takes the names of variables.
function(stagecraft_collide result defined used other_defined other_used)
  set(${result} TRUE PARENT_SCOPE)
  foreach(_name IN LISTS ${defined})
    if(_name IN_LIST ${other_defined} OR ";${${other_used}};" MATCHES ";${_name}=")
      return()
    endif()
  endforeach()
  foreach(_use IN LISTS ${used})
    string(REGEX REPLACE "=.*" "" _name ${_use})
    if(_name IN_LIST ${other_defined} OR (";${${other_used}};" MATCHES ";${_name}=" AND NOT _use IN_LIST ${other_used}))
      return()
    endif()
  endforeach()
  set(${result} FALSE PARENT_SCOPE)
endfunction()

# stagecraft_batches(RESULT NAME SOURCES ... ALONE ...): with STAGECRAFT_UNITY, files that include up to six of the sources
# each, which are parsed and optimised together in half the time; otherwise the sources. Sources that define the same name
# are never in one batch. ALONE: sources with compile options of their own, or that collide with what others include.
function(stagecraft_batches result name)
  cmake_parse_arguments(ARG "" "" "SOURCES;ALONE" ${ARGN})
  set(_out ${ARG_SOURCES})
  if(STAGECRAFT_UNITY)
    set(_out)
    list(SORT ARG_SOURCES)
    set(_last 0)
    set(_open)  # batches with fewer than six
    foreach(_source IN LISTS ARG_SOURCES)
      if(_source IN_LIST ARG_ALONE OR _source MATCHES "^\\$<")  # objects of another target
        list(APPEND _out ${_source})
        continue()
      endif()
      cmake_path(ABSOLUTE_PATH _source NORMALIZE OUTPUT_VARIABLE _path)
      stagecraft_names(${_path} _defined _used)
      set(_batch)
      foreach(_each IN LISTS _open)
        stagecraft_collide(_collides _defined _used _defined_${_each} _used_${_each})
        if(NOT _collides)
          set(_batch ${_each})
          break()
        endif()
      endforeach()
      if(NOT _batch)
        math(EXPR _last "${_last} + 1")
        set(_batch ${_last})
        list(APPEND _open ${_batch})
      endif()
      file(RELATIVE_PATH _path ${CMAKE_SOURCE_DIR} ${_path})
      list(APPEND _lines_${_batch} "#include \"${_path}\"")
      list(APPEND _defined_${_batch} ${_defined})
      list(APPEND _used_${_batch} ${_used})
      list(LENGTH _lines_${_batch} _count)
      if(_count EQUAL 6)
        list(REMOVE_ITEM _open ${_batch})
      endif()
    endforeach()
    foreach(_batch RANGE 1 ${_last})
      if(_lines_${_batch})
        list(JOIN _lines_${_batch} "\n" _text)
        set(_file ${CMAKE_CURRENT_BINARY_DIR}/batches/${name}_${_batch}.cpp)
        file(CONFIGURE OUTPUT ${_file} CONTENT "${_text}\n" @ONLY)
        list(APPEND _out ${_file})
      endif()
    endforeach()
  endif()
  set(${result} ${_out} PARENT_SCOPE)
endfunction()

# stagecraft_room(NAME HEADERS ... SOURCES ... ONCE ... ALONE ... LIBRARIES ... PRECOMPILED ...): the library of one room. ONCE:
# sources in which little time is spent. ALONE: as for stagecraft_batches.
function(stagecraft_room name)
  cmake_parse_arguments(ARG "" "" "HEADERS;SOURCES;ONCE;ALONE;LIBRARIES;PRIVATE_LIBRARIES;PRECOMPILED" ${ARGN})
  stagecraft_batches(_sources ${name} SOURCES ${ARG_SOURCES} ALONE ${ARG_ALONE})
  stagecraft_batches(_once ${name}_once SOURCES ${ARG_ONCE} ALONE ${ARG_ALONE})
  add_library(stagecraft_${name} STATIC ${_sources} ${_once})
  set_property(SOURCE ${_once} PROPERTY COMPILE_OPTIONS ${STAGECRAFT_ONCE_OPTIONS})
  set(_plain)
  set(_grouped)
  foreach(_header IN LISTS ARG_HEADERS)
    file(RELATIVE_PATH _path ${CMAKE_SOURCE_DIR} ${CMAKE_CURRENT_SOURCE_DIR}/${_header})
    stagecraft_header_group(${_path} _group)
    if(_group)
      list(APPEND _of_${_group} ${_path})
      list(APPEND _grouped ${_header})
    else()
      list(APPEND _plain ${_header})
    endif()
  endforeach()
  target_sources(stagecraft_${name} PUBLIC FILE_SET HEADERS BASE_DIRS ${CMAKE_SOURCE_DIR} FILES ${_plain}
                 FILE_SET grouped_headers TYPE HEADERS BASE_DIRS ${CMAKE_SOURCE_DIR} FILES ${_grouped})
  set_property(TARGET stagecraft_${name} PROPERTY INTERFACE_HEADER_SETS_TO_VERIFY HEADERS)
  foreach(_group IN LISTS STAGECRAFT_HEADER_GROUPS)
    stagecraft_verify_group(stagecraft_${name} ${_group} ${_of_${_group}})
  endforeach()
  target_link_libraries(stagecraft_${name} PUBLIC ${ARG_LIBRARIES}
                        PRIVATE $<BUILD_INTERFACE:stagecraft_options> ${ARG_PRIVATE_LIBRARIES})
  target_compile_features(stagecraft_${name} PUBLIC cxx_std_20)
  stagecraft_precompile(stagecraft_${name} HEADERS ${STAGECRAFT_STANDARD_HEADERS} ${ARG_PRECOMPILED})
endfunction()

# stagecraft_command(NAME SOURCES ... LIBRARIES ...): what several command lines share, as a library.
function(stagecraft_command name)
  cmake_parse_arguments(ARG "" "" "SOURCES;LIBRARIES" ${ARGN})
  add_library(stagecraft_${name} STATIC ${ARG_SOURCES})
  target_link_libraries(stagecraft_${name} PUBLIC ${ARG_LIBRARIES} CLI11::CLI11 PRIVATE stagecraft_options fmt::fmt)
  target_compile_options(stagecraft_${name} PRIVATE ${STAGECRAFT_ONCE_OPTIONS})
  stagecraft_share_precompiled(stagecraft_${name} STAGECRAFT_FIRST_COMMAND <CLI/CLI.hpp>)
endfunction()

# Everything that a user runs, without tests and benchmarks; and what scripts/demo runs.
add_custom_target(stagecraft_tools)
add_custom_target(stagecraft_demo_tools)
set(STAGECRAFT_DEMO_TOOLS links profile plan predict run compare)

# stagecraft_tool(VERB SOURCE LIBRARIES...): the executable stagecraft-VERB, installed.
function(stagecraft_tool verb source)
  add_executable(stagecraft-${verb} ${source})
  target_link_libraries(stagecraft-${verb} PRIVATE stagecraft_options ${ARGN} stagecraft_tool_command CLI11::CLI11 fmt::fmt)
  target_compile_options(stagecraft-${verb} PRIVATE ${STAGECRAFT_ONCE_OPTIONS})
  stagecraft_share_precompiled(stagecraft-${verb} STAGECRAFT_FIRST_TOOL <CLI/CLI.hpp>)
  add_dependencies(stagecraft_tools stagecraft-${verb})
  if(verb IN_LIST STAGECRAFT_DEMO_TOOLS)
    add_dependencies(stagecraft_demo_tools stagecraft-${verb})
  endif()
  install(TARGETS stagecraft-${verb} DESTINATION ${CMAKE_INSTALL_BINDIR})
endfunction()

# One precompiled header for the tests without LibTorch and one for those with it, each made by an empty program.
function(stagecraft_test_headers name)
  cmake_parse_arguments(ARG "" "" "HEADERS;LIBRARIES" ${ARGN})
  file(WRITE ${CMAKE_BINARY_DIR}/${name}.cpp "")
  add_executable(${name} EXCLUDE_FROM_ALL ${CMAKE_BINARY_DIR}/${name}.cpp)
  target_link_libraries(${name} PRIVATE stagecraft_options ${ARG_LIBRARIES} GTest::gtest_main GTest::gmock)
  target_compile_options(${name} PRIVATE $<$<CONFIG:Release>:-Og>)
  target_precompile_headers(${name} PRIVATE ${STAGECRAFT_TEST_HEADERS} ${STAGECRAFT_STANDARD_HEADERS} ${ARG_HEADERS})
endfunction()

# stagecraft_test(NAME SOURCES ... LIBRARIES ... [LABELS ...] [TENSORS]): one GoogleTest binary, each suite a test of CTest.
# TENSORS: its files include LibTorch.
function(stagecraft_test name)
  cmake_parse_arguments(ARG "TENSORS" "" "SOURCES;LIBRARIES;LABELS" ${ARGN})
  stagecraft_batches(_sources ${name} SOURCES ${ARG_SOURCES})
  add_executable(${name} ${_sources})
  target_link_libraries(${name} PRIVATE stagecraft_options ${ARG_LIBRARIES} stagecraft_places GTest::gtest_main GTest::gmock)
  # Compiling a test takes longer than running it; -Og compiles fastest, -O0 included.
  target_compile_options(${name} PRIVATE $<$<CONFIG:Release>:-Og>)
  if(ARG_TENSORS)
    target_sources(${name} PRIVATE ${CMAKE_SOURCE_DIR}/tests/support/quick_end.cpp)
    set_source_files_properties(${CMAKE_SOURCE_DIR}/tests/support/quick_end.cpp PROPERTIES SKIP_PRECOMPILE_HEADERS ON)
  endif()
  if(STAGECRAFT_PRECOMPILE)
    if(ARG_TENSORS)
      target_precompile_headers(${name} REUSE_FROM stagecraft_tensor_test_headers)
    else()
      target_precompile_headers(${name} REUSE_FROM stagecraft_test_headers)
    endif()
  endif()
  configure_file(${CMAKE_SOURCE_DIR}/scripts/cmake/test_suites.cmake.in ${CMAKE_CURRENT_BINARY_DIR}/${name}_tests.cmake @ONLY)
  set_property(DIRECTORY APPEND PROPERTY TEST_INCLUDE_FILES ${CMAKE_CURRENT_BINARY_DIR}/${name}_tests.cmake)
endfunction()
