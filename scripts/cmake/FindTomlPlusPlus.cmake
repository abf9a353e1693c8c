# toml++, which reads TOML. Headers only: its library, which Debian has too, is not linked.
#   TomlPlusPlus::headers
find_path(TomlPlusPlus_INCLUDE_DIR toml++/toml.h)
mark_as_advanced(TomlPlusPlus_INCLUDE_DIR)

include(FindPackageHandleStandardArgs)
find_package_handle_standard_args(TomlPlusPlus
  REQUIRED_VARS TomlPlusPlus_INCLUDE_DIR
  REASON_FAILURE_MESSAGE "install Debian's libtomlplusplus-dev, or set TomlPlusPlus_INCLUDE_DIR to the folder that holds toml++/toml.h")

if(TomlPlusPlus_FOUND AND NOT TARGET TomlPlusPlus::headers)
  add_library(TomlPlusPlus::headers INTERFACE IMPORTED)
  set_target_properties(TomlPlusPlus::headers PROPERTIES INTERFACE_INCLUDE_DIRECTORIES ${TomlPlusPlus_INCLUDE_DIR})
endif()
