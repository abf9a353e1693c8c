# find_package(stagecraft) for other projects: the cost model and the partitioner as stagecraft::costmodel and
# stagecraft::partitioner, without LibTorch.
include(CMakePackageConfigHelpers)
set(_place ${CMAKE_INSTALL_LIBDIR}/cmake/stagecraft)
set_target_properties(stagecraft_costmodel_core PROPERTIES EXPORT_NAME costmodel_core)
set_target_properties(stagecraft_costmodel PROPERTIES EXPORT_NAME costmodel)
set_target_properties(stagecraft_partitioner PROPERTIES EXPORT_NAME partitioner)
# The build links the partitioner with the core alone, for the demo's sake; an installed one brings the whole cost model.
target_link_libraries(stagecraft_partitioner INTERFACE $<INSTALL_INTERFACE:stagecraft::costmodel>)
install(TARGETS stagecraft_costmodel_core stagecraft_costmodel stagecraft_partitioner EXPORT stagecraftTargets
        ARCHIVE DESTINATION ${CMAKE_INSTALL_LIBDIR}
        FILE_SET HEADERS DESTINATION ${CMAKE_INSTALL_INCLUDEDIR}/stagecraft
        FILE_SET grouped_headers DESTINATION ${CMAKE_INSTALL_INCLUDEDIR}/stagecraft)
install(EXPORT stagecraftTargets NAMESPACE stagecraft:: DESTINATION ${_place})
configure_package_config_file(${CMAKE_CURRENT_LIST_DIR}/stagecraftConfig.cmake.in
                              ${CMAKE_BINARY_DIR}/stagecraftConfig.cmake INSTALL_DESTINATION ${_place})
write_basic_package_version_file(${CMAKE_BINARY_DIR}/stagecraftConfigVersion.cmake COMPATIBILITY SameMinorVersion)
install(FILES ${CMAKE_BINARY_DIR}/stagecraftConfig.cmake ${CMAKE_BINARY_DIR}/stagecraftConfigVersion.cmake
        DESTINATION ${_place})
