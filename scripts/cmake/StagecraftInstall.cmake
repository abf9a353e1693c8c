# What "cmake --install" copies besides the programs.
include(StagecraftPackage)
install(PROGRAMS scripts/stagecraft DESTINATION ${CMAKE_INSTALL_BINDIR})
install(FILES scripts/completion/stagecraft DESTINATION ${CMAKE_INSTALL_DATADIR}/bash-completion/completions)
file(GLOB _examples examples/*.json)
install(FILES ${_examples} DESTINATION ${CMAKE_INSTALL_DATADIR}/stagecraft/examples)
install(FILES scripts/completion/_stagecraft DESTINATION ${CMAKE_INSTALL_DATADIR}/zsh/site-functions)
# Manual pages, from what the programs say with --help.
install(CODE "execute_process(
  COMMAND \"${CMAKE_COMMAND}\" -E env \"STAGECRAFT_BIN=${CMAKE_RUNTIME_OUTPUT_DIRECTORY}\"
          \"${CMAKE_SOURCE_DIR}/scripts/man/make_pages\" \"${CMAKE_SOURCE_DIR}/scripts/stagecraft\"
          \"\$ENV{DESTDIR}\${CMAKE_INSTALL_PREFIX}/${CMAKE_INSTALL_MANDIR}/man1\"
  COMMAND_ERROR_IS_FATAL ANY)")
install(FILES scripts/export_model.py DESTINATION ${CMAKE_INSTALL_DATADIR}/stagecraft)
install(DIRECTORY scripts/exporter DESTINATION ${CMAKE_INSTALL_DATADIR}/stagecraft FILES_MATCHING PATTERN "*.py")
