# cmake --install build/rel --prefix DIR: program, LLVM component, libraries and headers.
# A project then says find_package(bellmetal) and links bellmetal::bm_tensor or a lower layer.
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
  ${CMAKE_BINARY_DIR}/bellmetal-config.cmake INSTALL_DESTINATION ${bm_config_dir})
write_basic_package_version_file(${CMAKE_BINARY_DIR}/bellmetal-config-version.cmake
  COMPATIBILITY SameMinorVersion)
install(FILES ${CMAKE_BINARY_DIR}/bellmetal-config.cmake
  ${CMAKE_BINARY_DIR}/bellmetal-config-version.cmake DESTINATION ${bm_config_dir})
install(TARGETS bellmetal RUNTIME DESTINATION ${CMAKE_INSTALL_BINDIR})
