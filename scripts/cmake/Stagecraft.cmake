# What our targets share: language, warnings, sanitizers.
add_library(stagecraft_options INTERFACE)
target_compile_features(stagecraft_options INTERFACE cxx_std_20)
target_compile_options(stagecraft_options INTERFACE -Wall -Wextra -Wpedantic -Wshadow -Wnon-virtual-dtor
                       -Wno-restrict)  # g++ 12 sees overlaps in std::string that are not there (GCC bug 105651)
if(STAGECRAFT_WARNINGS_AS_ERRORS)
  target_compile_options(stagecraft_options INTERFACE -Werror)
endif()
if(STAGECRAFT_SANITIZE)
  target_compile_options(stagecraft_options INTERFACE -fsanitize=address,undefined -fno-omit-frame-pointer)
  target_link_options(stagecraft_options INTERFACE -fsanitize=address,undefined)
endif()

# stagecraft_room(NAME HEADERS ... SOURCES ... LIBRARIES ...): the library of one room.
function(stagecraft_room name)
  cmake_parse_arguments(ARG "" "" "HEADERS;SOURCES;LIBRARIES;PRIVATE_LIBRARIES" ${ARGN})
  add_library(stagecraft_${name} STATIC ${ARG_SOURCES})
  target_sources(stagecraft_${name} PUBLIC FILE_SET HEADERS BASE_DIRS ${CMAKE_SOURCE_DIR} FILES ${ARG_HEADERS})
  target_link_libraries(stagecraft_${name} PUBLIC ${ARG_LIBRARIES} PRIVATE stagecraft_options ${ARG_PRIVATE_LIBRARIES})
  target_compile_features(stagecraft_${name} PUBLIC cxx_std_20)
endfunction()

# stagecraft_tool(VERB SOURCE LIBRARIES...): the executable stagecraft-VERB, installed.
function(stagecraft_tool verb source)
  add_executable(stagecraft-${verb} ${source})
  target_link_libraries(stagecraft-${verb} PRIVATE stagecraft_options ${ARGN} CLI11::CLI11 fmt::fmt)
  install(TARGETS stagecraft-${verb} DESTINATION ${CMAKE_INSTALL_BINDIR})
endfunction()

# stagecraft_test(NAME SOURCES ... LIBRARIES ... [LABELS ...]): one GoogleTest binary, each case a CTest.
function(stagecraft_test name)
  cmake_parse_arguments(ARG "" "" "SOURCES;LIBRARIES;LABELS" ${ARGN})
  add_executable(${name} ${ARG_SOURCES})
  target_link_libraries(${name} PRIVATE stagecraft_options ${ARG_LIBRARIES} GTest::gtest_main GTest::gmock)
  target_compile_definitions(${name} PRIVATE STAGECRAFT_SOURCE_DIR="${CMAKE_SOURCE_DIR}"
                                             STAGECRAFT_BIN_DIR="${CMAKE_RUNTIME_OUTPUT_DIRECTORY}")
  gtest_discover_tests(${name} PROPERTIES TIMEOUT 300 LABELS "${ARG_LABELS}" DISCOVERY_TIMEOUT 60)
endfunction()
