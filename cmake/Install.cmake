# cmake --install build/rel --prefix DIR: program, LLVM component, libraries, headers, documents and the
# bundled model. A project then says find_package(bellmetal) and links bellmetal::bm_tensor or a lower
# layer, or asks pkg-config for bellmetal. The prefix may be moved afterwards.
include(GNUInstallDirs)
include(CMakePackageConfigHelpers)

get_property(bm_installed GLOBAL PROPERTY BM_INSTALLED_TARGETS)
install(TARGETS ${bm_installed} bm_thirdparty EXPORT bellmetal-targets
  ARCHIVE DESTINATION ${CMAKE_INSTALL_LIBDIR}
  FILE_SET HEADERS DESTINATION ${CMAKE_INSTALL_INCLUDEDIR}/bm)
install(EXPORT bellmetal-targets NAMESPACE bellmetal::
  DESTINATION ${CMAKE_INSTALL_LIBDIR}/cmake/bellmetal)

set(bm_config_dir ${CMAKE_INSTALL_LIBDIR}/cmake/bellmetal)
configure_package_config_file(${CMAKE_CURRENT_LIST_DIR}/bellmetal-config.cmake.in
  ${CMAKE_BINARY_DIR}/bellmetal-config.cmake INSTALL_DESTINATION ${bm_config_dir}
  PATH_VARS CMAKE_INSTALL_LIBDIR)
write_basic_package_version_file(${CMAKE_BINARY_DIR}/bellmetal-config-version.cmake
  COMPATIBILITY SameMinorVersion)
install(FILES ${CMAKE_BINARY_DIR}/bellmetal-config.cmake
  ${CMAKE_BINARY_DIR}/bellmetal-config-version.cmake DESTINATION ${bm_config_dir})

# The archives refer to each other in both directions (the table of drivers), so they form a group.
set(bm_pc_libs "")
foreach(library ${bm_installed})
  get_target_property(kind ${library} TYPE)
  if(kind STREQUAL "STATIC_LIBRARY")
    string(APPEND bm_pc_libs " -l${library}")
  endif()
endforeach()
file(RELATIVE_PATH bm_pc_prefix /prefix/${CMAKE_INSTALL_LIBDIR}/pkgconfig /prefix)
configure_file(${CMAKE_CURRENT_LIST_DIR}/bellmetal.pc.in ${CMAKE_BINARY_DIR}/bellmetal.pc @ONLY)
install(FILES ${CMAKE_BINARY_DIR}/bellmetal.pc DESTINATION ${CMAKE_INSTALL_LIBDIR}/pkgconfig)

install(TARGETS bellmetal RUNTIME DESTINATION ${CMAKE_INSTALL_BINDIR})
install(FILES ${PROJECT_SOURCE_DIR}/LICENSE ${PROJECT_SOURCE_DIR}/README.md
  ${PROJECT_SOURCE_DIR}/CHANGELOG.md DESTINATION ${CMAKE_INSTALL_DOCDIR})
install(DIRECTORY ${PROJECT_SOURCE_DIR}/docs DESTINATION ${CMAKE_INSTALL_DOCDIR})
install(FILES ${PROJECT_SOURCE_DIR}/SECURITY.md DESTINATION ${CMAKE_INSTALL_DOCDIR})

# Bill of materials of the files as they are installed. Only Debian's tools know their packages.
find_program(BM_DPKG dpkg-query)
find_program(BM_SBOM_PYTHON python3)
if(BM_DPKG AND BM_SBOM_PYTHON AND NOT BM_SANITIZE)
  set(bm_sbom_files $<TARGET_FILE:bellmetal>)
  if(TARGET bm_llvm_plugin)
    list(APPEND bm_sbom_files $<TARGET_FILE:bm_llvm_plugin>)
  endif()
  install(CODE "
    execute_process(COMMAND ${BM_SBOM_PYTHON} ${PROJECT_SOURCE_DIR}/tools/sbom --out ${CMAKE_BINARY_DIR}/bellmetal.spdx.json
      ${bm_sbom_files} COMMAND_ERROR_IS_FATAL ANY)")
  install(FILES ${CMAKE_BINARY_DIR}/bellmetal.spdx.json DESTINATION ${CMAKE_INSTALL_DOCDIR})
endif()
install(FILES ${PROJECT_SOURCE_DIR}/packaging/bellmetal.service ${PROJECT_SOURCE_DIR}/packaging/bellmetal.socket
  DESTINATION ${CMAKE_INSTALL_DATADIR}/bellmetal/systemd)
install(FILES ${PROJECT_SOURCE_DIR}/models/bundled/licence.gguf
  DESTINATION ${CMAKE_INSTALL_DATADIR}/bellmetal)
