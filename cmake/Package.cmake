# A Debian package of the program: cpack -G DEB --config build/rel/CPackConfig.cmake -B FOLDER, once `bellmetal` and its LLVM
# component are built. Headers and libraries are no part of it. Where files lie and what belongs to them is Debian's
# policy; `tests/integration/package_test.py` builds, unpacks and runs it, lintian judges.
find_program(BM_GZIP gzip)
if(NOT BM_DPKG OR NOT BM_GZIP OR NOT TARGET bm_llvm_plugin)
  return()
endif()
set(bm_package_dir ${CMAKE_BINARY_DIR}/package)

# The unit names the program where the package puts it.
file(READ ${PROJECT_SOURCE_DIR}/packaging/bellmetal.service bm_unit)
string(REPLACE "/usr/local/bin/bellmetal" "/usr/bin/bellmetal" bm_unit "${bm_unit}")
string(REPLACE "copy to /etc/systemd/system, name" "name" bm_unit "${bm_unit}")
file(CONFIGURE OUTPUT ${bm_package_dir}/bellmetal.service CONTENT "${bm_unit}" @ONLY)

# The date of the sources, so that two packages of them are equal.
set(bm_package_date "Thu, 01 Jan 2026 00:00:00 +0000")
find_program(BM_GIT git)
if(BM_GIT)
  execute_process(COMMAND ${BM_GIT} -C ${PROJECT_SOURCE_DIR} log -1 --format=%cD OUTPUT_VARIABLE date
    OUTPUT_STRIP_TRAILING_WHITESPACE ERROR_QUIET)
  if(date)
    set(bm_package_date "${date}")
  endif()
endif()
set(BM_PACKAGE_MAINTAINER "The Bellmetal authors <root@localhost>" CACHE STRING "who answers for a package: Name <address>")
file(CONFIGURE OUTPUT ${bm_package_dir}/changelog @ONLY CONTENT
"bellmetal (@PROJECT_VERSION@) unstable; urgency=medium

  * What has changed: /usr/share/doc/bellmetal/CHANGELOG.md.gz.

 -- @BM_PACKAGE_MAINTAINER@  @bm_package_date@
")
file(READ ${PROJECT_SOURCE_DIR}/LICENSE bm_licence)
string(REGEX REPLACE "\n\n" "\n.\n" bm_licence "${bm_licence}")
string(REGEX REPLACE "\n([^\n])" "\n \\1" bm_licence "${bm_licence}")
file(CONFIGURE OUTPUT ${bm_package_dir}/copyright @ONLY CONTENT
"Format: https://www.debian.org/doc/packaging-manuals/copyright-format/1.0/
Upstream-Name: bellmetal

Files: *
Copyright: 2026 The Bellmetal authors
License: Expat
 @bm_licence@")
foreach(file changelog ${PROJECT_SOURCE_DIR}/CHANGELOG.md ${PROJECT_SOURCE_DIR}/packaging/bellmetal.1)
  get_filename_component(name ${file} NAME)
  if(NOT IS_ABSOLUTE ${file})
    set(file ${bm_package_dir}/${file})
  endif()
  execute_process(COMMAND ${BM_GZIP} -9nc ${file} OUTPUT_FILE ${bm_package_dir}/${name}.gz COMMAND_ERROR_IS_FATAL ANY)
endforeach()

set(bm_doc share/doc/bellmetal)
install(TARGETS bellmetal RUNTIME DESTINATION bin COMPONENT package EXCLUDE_FROM_ALL)
install(TARGETS bm_llvm_plugin LIBRARY DESTINATION lib COMPONENT package EXCLUDE_FROM_ALL)
# The component is loaded by its path and never linked, so it has no SONAME; LLVM lies in a folder of its own.
file(WRITE ${bm_package_dir}/overrides/bellmetal
"bellmetal: sharedobject-in-library-directory-missing-soname\nbellmetal: custom-library-search-path\n")
install(FILES ${bm_package_dir}/overrides/bellmetal DESTINATION share/lintian/overrides COMPONENT package EXCLUDE_FROM_ALL)
install(FILES ${bm_package_dir}/bellmetal.service ${PROJECT_SOURCE_DIR}/packaging/bellmetal.socket
  DESTINATION lib/systemd/system COMPONENT package EXCLUDE_FROM_ALL)
install(FILES ${PROJECT_SOURCE_DIR}/packaging/serve.env DESTINATION /etc/bellmetal COMPONENT package EXCLUDE_FROM_ALL)
install(FILES ${bm_package_dir}/bellmetal.1.gz DESTINATION share/man/man1 COMPONENT package EXCLUDE_FROM_ALL)
install(FILES ${bm_package_dir}/changelog.gz ${bm_package_dir}/CHANGELOG.md.gz ${bm_package_dir}/copyright
  ${PROJECT_SOURCE_DIR}/README.md ${PROJECT_SOURCE_DIR}/SECURITY.md ${PROJECT_SOURCE_DIR}/packaging/kubernetes.yaml
  DESTINATION ${bm_doc} COMPONENT package EXCLUDE_FROM_ALL)
install(DIRECTORY ${PROJECT_SOURCE_DIR}/docs DESTINATION ${bm_doc} COMPONENT package EXCLUDE_FROM_ALL)
install(FILES ${PROJECT_SOURCE_DIR}/models/bundled/licence.gguf DESTINATION share/bellmetal COMPONENT package EXCLUDE_FROM_ALL)

set(CPACK_GENERATOR DEB)
set(CPACK_PACKAGING_INSTALL_PREFIX /usr)
set(CPACK_COMPONENTS_ALL package)
set(CPACK_COMPONENTS_GROUPING ALL_COMPONENTS_IN_ONE)
set(CPACK_DEB_COMPONENT_INSTALL ON)
set(CPACK_STRIP_FILES ON)
set(CPACK_DEBIAN_FILE_NAME DEB-DEFAULT)
set(CPACK_DEBIAN_PACKAGE_NAME bellmetal)
set(CPACK_DEBIAN_PACKAGE_VERSION ${PROJECT_VERSION})
set(CPACK_DEBIAN_PACKAGE_MAINTAINER "${BM_PACKAGE_MAINTAINER}")
set(CPACK_DEBIAN_PACKAGE_SECTION science)
set(CPACK_DEBIAN_PACKAGE_PRIORITY optional)
set(CPACK_DEBIAN_PACKAGE_DESCRIPTION
"language models on CPUs and GPUs, and their server
 Drivers of AMD's and NVIDIA's GPUs in user space, a compiler of tensor
 programs for them and for CPUs, and language models on top: text in a
 terminal, chats, and a server in the form of OpenAI's interface with a unit
 for systemd.")
set(CPACK_DEBIAN_PACKAGE_SHLIBDEPS ON)
# What dpkg-shlibdeps does not see: a library that is loaded when asked for, and LLVM, which lies in a folder of its own.
set(CPACK_DEBIAN_PACKAGE_DEPENDS libmicrohttpd12)
get_target_property(bm_llvm_dir bm_llvm_plugin INSTALL_RPATH)
file(GLOB bm_llvm_libraries ${bm_llvm_dir}/libLLVM.so.* ${bm_llvm_dir}/libLLVM-*.so*)
foreach(library ${bm_llvm_libraries})
  file(REAL_PATH ${library} library)
  execute_process(COMMAND ${BM_DPKG} -S ${library} OUTPUT_VARIABLE owner ERROR_QUIET)
  if(owner MATCHES "^([a-z0-9.+-]+)")
    string(APPEND CPACK_DEBIAN_PACKAGE_DEPENDS ", ${CMAKE_MATCH_1}")
    break()
  endif()
endforeach()
set(CPACK_DEBIAN_PACKAGE_SUGGESTS "ocl-icd-libopencl1, openmpi-bin")
set(CPACK_DEBIAN_COMPRESSION_TYPE xz)
set(CPACK_DEBIAN_PACKAGE_CONTROL_STRICT_PERMISSION ON)
file(WRITE ${bm_package_dir}/conffiles "/etc/bellmetal/serve.env\n")
set(CPACK_DEBIAN_PACKAGE_CONTROL_EXTRA ${bm_package_dir}/conffiles)
include(CPack)
