# Helpers used by every folder: one static library per folder, one test program per folder.
include_guard(GLOBAL)

# Target all_verify_interface_header_sets compiles every header of every library alone; tools/lint/headers.py does it sooner.
set(CMAKE_VERIFY_INTERFACE_HEADER_SETS ON)

add_library(bm_options INTERFACE)
target_compile_features(bm_options INTERFACE cxx_std_20)
target_include_directories(bm_options INTERFACE ${PROJECT_SOURCE_DIR})
target_compile_options(bm_options INTERFACE
  -Wall -Wextra -Wpedantic -Wshadow -Wconversion -Wswitch
  -fno-semantic-interposition -fvisibility=hidden -fPIC)
if(BM_WERROR)
  target_compile_options(bm_options INTERFACE -Werror)
endif()
# clang 19 blames programs for what std::stable_sort of libstdc++ 12 does inside.
target_compile_options(bm_options INTERFACE $<$<CXX_COMPILER_ID:Clang>:-Wno-deprecated-declarations>)

# Hardening, checked in the finished files by tests/integration/elf_test.py. Sanitizers look closer without it.
if(NOT BM_SANITIZE)
  target_compile_options(bm_options INTERFACE -fstack-protector-strong -fstack-clash-protection)
  target_link_options(bm_options INTERFACE -Wl,-z,relro,-z,now,-z,noexecstack)
  if(CMAKE_BUILD_TYPE STREQUAL "Release")
    # Programs of tests are not optimised (bm_test_options), and glibc's headers warn of such a combination.
    target_compile_options(bm_options INTERFACE -U_FORTIFY_SOURCE
      $<$<NOT:$<BOOL:$<TARGET_PROPERTY:BM_IS_TEST>>>:-D_FORTIFY_SOURCE=3>)
  endif()
  if(CMAKE_SYSTEM_PROCESSOR MATCHES "x86_64|AMD64")
    # Debian's start files carry no mark, which ld takes for a veto unless told.
    target_compile_options(bm_options INTERFACE -fcf-protection=full)
    target_link_options(bm_options INTERFACE -Wl,-z,ibt,-z,shstk)
  endif()
  # The same bytes wherever the sources lie.
  target_compile_options(bm_options INTERFACE -ffile-prefix-map=${PROJECT_SOURCE_DIR}=.
    -ffile-prefix-map=${CMAKE_BINARY_DIR}=build)
endif()
if(BM_SANITIZE)
  target_compile_options(bm_options INTERFACE -fsanitize=${BM_SANITIZE} -fno-omit-frame-pointer
    -fno-sanitize-recover=all)
  # Kernels are called that no compiler of ours marked with a type: clang would read it in front of them, where nothing is mapped.
  target_compile_options(bm_options INTERFACE $<$<CXX_COMPILER_ID:Clang>:-fno-sanitize=function>)
  target_link_options(bm_options INTERFACE -fsanitize=${BM_SANITIZE})
  string(REPLACE "," "_" _bm_san "${BM_SANITIZE}")
endif()

# One precompiled header for the product, one with gtest on top for tests.
# Named in angle brackets: CMake would write an absolute path into the header, and ccache could not share it between checkouts.
function(bm_use_pch target)
  if(NOT BM_PCH)
    return()
  endif()
  if(NOT TARGET bm_pch)
    file(WRITE ${CMAKE_BINARY_DIR}/pch/empty.cpp "")
    add_library(bm_pch OBJECT ${CMAKE_BINARY_DIR}/pch/empty.cpp)
    target_link_libraries(bm_pch PRIVATE bm_options bm_thirdparty)
    target_precompile_headers(bm_pch PRIVATE <cmake/pch.h>)
  endif()
  target_precompile_headers(${target} REUSE_FROM bm_pch)
endfunction()

# bm_library(NAME SOURCES a.cpp … HEADERS a.h … DEPS bm_base …)
function(bm_library name)
  cmake_parse_arguments(ARG "" "" "SOURCES;HEADERS;DEPS" ${ARGN})
  # A room of headers alone has nothing to compile.
  if(NOT ARG_SOURCES)
    add_library(${name} INTERFACE)
    target_sources(${name} INTERFACE FILE_SET HEADERS BASE_DIRS ${PROJECT_SOURCE_DIR} FILES ${ARG_HEADERS})
    target_link_libraries(${name} INTERFACE $<BUILD_INTERFACE:bm_options> bm_thirdparty ${ARG_DEPS})
    target_compile_features(${name} INTERFACE cxx_std_20)
    string(REPLACE "bm_" "" short ${name})
    add_library(bm::${short} ALIAS ${name})
    set_property(GLOBAL APPEND PROPERTY BM_INSTALLED_TARGETS ${name})
    return()
  endif()
  add_library(${name} STATIC ${ARG_SOURCES})
  target_sources(${name} PUBLIC FILE_SET HEADERS BASE_DIRS ${PROJECT_SOURCE_DIR}
    FILES ${ARG_HEADERS})
  # Our warnings and source path are for building here, not for those who link an installed library.
  target_link_libraries(${name} PUBLIC $<BUILD_INTERFACE:bm_options> bm_thirdparty ${ARG_DEPS})
  target_compile_features(${name} PUBLIC cxx_std_20)
  bm_use_pch(${name})
  string(REPLACE "bm_" "" short ${name})
  add_library(bm::${short} ALIAS ${name})
  # Tests' own libraries stay out of the installation (cmake/Install.cmake).
  if(NOT CMAKE_CURRENT_SOURCE_DIR MATCHES "^${PROJECT_SOURCE_DIR}/tests/")
    set_property(GLOBAL APPEND PROPERTY BM_INSTALLED_TARGETS ${name})
  endif()
endfunction()

# Programs of tests are compiled for build time, not speed: without optimisation, which halves it, or as OPTIMISED says for those that
# calculate a lot themselves. What they test is optimised, and so are the simulators.
function(bm_test_options target)
  cmake_parse_arguments(ARG "OPTIMISED" "" "" ${ARGN})
  set(pch bm_test_pch)
  set(level -O0)
  if(ARG_OPTIMISED)
    set(pch bm_optimised_test_pch)
    # g++ 12 sees array bounds broken inside std::string at this level.
    set(level -O1 "$<$<CXX_COMPILER_ID:GNU>:-Wno-array-bounds;-Wno-stringop-overflow;-Wno-restrict>")
  endif()
  if(CMAKE_BUILD_TYPE STREQUAL "Release")
    set_target_properties(${target} PROPERTIES BM_IS_TEST ON)
    target_compile_options(${target} PRIVATE ${level})
  endif()
  if(NOT BM_PCH)
    return()
  endif()
  if(NOT TARGET ${pch})
    file(WRITE ${CMAKE_BINARY_DIR}/pch/${pch}.cpp "")
    add_library(${pch} OBJECT ${CMAKE_BINARY_DIR}/pch/${pch}.cpp)
    target_link_libraries(${pch} PRIVATE bm_options bm_thirdparty GTest::gtest)
    if(CMAKE_BUILD_TYPE STREQUAL "Release")
      set_target_properties(${pch} PROPERTIES BM_IS_TEST ON)
      target_compile_options(${pch} PRIVATE ${level})
    endif()
    target_precompile_headers(${pch} PRIVATE <cmake/pch_test.h>)
  endif()
  target_precompile_headers(${target} REUSE_FROM ${pch})
endfunction()

# What every test runs under. An OpenCL platform that is merely listed leaks at exit; the file names
# its libraries, not ours.
set(BM_TEST_ENVIRONMENT "BM_PLUGIN_DIR=${CMAKE_BINARY_DIR}/lib"
  "LSAN_OPTIONS=suppressions=${PROJECT_SOURCE_DIR}/tests/leaks.lsan:print_suppressions=0")

# What every entry of a gtest program has in common: bm_test_entries(NAME PROGRAM program [LABELS unit]
# [PARTS n] [FILTER pattern] [LIMIT seconds] [ENVIRONMENT A=b …] [DAILY n]). One ctest entry, or n with a share of
# the tests each: 2,000 process starts cost more than the tests themselves. DAILY n: an n-th of the tests, another one
# every day (with PARTS, of each part).
#
# Labels that say when an entry runs: none of them, in every `tools/test`; slow, in `tools/test --all` too,
# which is what continuous integration runs; long (hours), only in `tools/test --long`; hw, by hand on a GPU.
# No entry without one of these takes more than a minute on two idle cores. LIMIT is for an idle machine:
# ctest multiplies it (cmake/TestLimits.cmake).
function(bm_test_entries name)
  cmake_parse_arguments(ARG "" "PROGRAM;PARTS;FILTER;LIMIT;DAILY" "LABELS;ENVIRONMENT" ${ARGN})
  if(NOT BM_TESTS)
    return()
  endif()
  if(NOT ARG_LABELS)
    set(ARG_LABELS unit)
  endif()
  if(NOT ARG_PARTS)
    set(ARG_PARTS 1)
  endif()
  if(NOT ARG_LIMIT)
    set(ARG_LIMIT 600)
  endif()
  if(NOT "${ARG_LABELS}" MATCHES "slow|long|hw")
    set_property(GLOBAL APPEND PROPERTY BM_QUICK_PROGRAMS ${ARG_PROGRAM})
  endif()
  set(filter "")
  if(ARG_FILTER)
    set(filter "--gtest_filter=${ARG_FILTER}")
  endif()
  foreach(part RANGE 1 ${ARG_PARTS})
    set(entry ${name})
    if(ARG_PARTS GREATER 1)
      set(entry ${name}.${part})
    endif()
    set(environment "BM_CACHE_DIR=${CMAKE_BINARY_DIR}/test-cache/${entry}" ${BM_TEST_ENVIRONMENT} ${ARG_ENVIRONMENT})
    math(EXPR index "${part} - 1")
    set(command ${ARG_PROGRAM})
    if(ARG_DAILY)
      math(EXPR shards "${ARG_PARTS} * ${ARG_DAILY}")
      set(command sh -c
        "GTEST_TOTAL_SHARDS=${shards} GTEST_SHARD_INDEX=$(($(date +%s) / 86400 % ${ARG_DAILY} * ${ARG_PARTS} + ${index})) exec \"$0\" \"$@\""
        $<TARGET_FILE:${ARG_PROGRAM}>)
    elseif(ARG_PARTS GREATER 1)
      list(APPEND environment GTEST_TOTAL_SHARDS=${ARG_PARTS} GTEST_SHARD_INDEX=${index})
    endif()
    add_test(NAME ${entry} COMMAND ${command} --gtest_brief=1 ${filter} WORKING_DIRECTORY ${PROJECT_SOURCE_DIR})
    set_tests_properties(${entry} PROPERTIES LABELS "${ARG_LABELS}" TIMEOUT ${ARG_LIMIT}
      ENVIRONMENT "${environment}")
  endforeach()
endfunction()

# Programs that only entries labelled slow or long run: `tools/test` without --all does not build them.
function(bm_slow_programs)
  set_property(GLOBAL APPEND PROPERTY BM_SLOW_PROGRAMS ${ARGN})
endfunction()

function(bm_targets_below folder result)
  get_property(targets DIRECTORY ${folder} PROPERTY BUILDSYSTEM_TARGETS)
  get_property(below DIRECTORY ${folder} PROPERTY SUBDIRECTORIES)
  foreach(sub IN LISTS below)
    bm_targets_below(${sub} more)
    list(APPEND targets ${more})
  endforeach()
  set(${result} ${targets} PARENT_SCOPE)
endfunction()

# Target quick: all but those. Behind the last add_subdirectory.
function(bm_quick)
  get_property(slow GLOBAL PROPERTY BM_SLOW_PROGRAMS)
  get_property(quick GLOBAL PROPERTY BM_QUICK_PROGRAMS)
  if(quick)
    list(REMOVE_ITEM slow ${quick})
  endif()
  bm_targets_below(${PROJECT_SOURCE_DIR} targets)
  add_custom_target(quick)
  foreach(target IN LISTS targets)
    get_target_property(type ${target} TYPE)
    get_target_property(is_excluded ${target} EXCLUDE_FROM_ALL)
    if(type MATCHES "^(EXECUTABLE|STATIC_LIBRARY|SHARED_LIBRARY|MODULE_LIBRARY|OBJECT_LIBRARY)$" AND NOT is_excluded
        AND NOT target IN_LIST slow)
      add_dependencies(quick ${target})
    endif()
  endforeach()
endfunction()

# bm_test(NAME SOURCES a_test.cpp … DEPS bm_base … [LABELS unit] [PARTS n] [FILTER pattern]
# [DAILY n] [ENVIRONMENT A=b …] [OPTIMISED]): gtest program and its entries. With DAILY NAME.whole runs all in the long run.
function(bm_test name)
  cmake_parse_arguments(ARG "OPTIMISED" "PARTS;FILTER;DAILY" "SOURCES;DEPS;LABELS;ENVIRONMENT" ${ARGN})
  if(NOT BM_TESTS)
    return()
  endif()
  add_executable(${name} ${ARG_SOURCES})
  target_link_libraries(${name} PRIVATE bm_options ${ARG_DEPS} GTest::gtest GTest::gtest_main)
  if(ARG_OPTIMISED)
    bm_test_options(${name} OPTIMISED)
  else()
    bm_test_options(${name})
  endif()
  if("${ARG_LABELS}" MATCHES "slow|long")
    bm_slow_programs(${name})
  endif()
  bm_test_entries(${name} PROGRAM ${name} LABELS ${ARG_LABELS} PARTS ${ARG_PARTS} FILTER ${ARG_FILTER}
    DAILY ${ARG_DAILY} ENVIRONMENT ${ARG_ENVIRONMENT})
  if(ARG_DAILY)
    bm_test_entries(${name}.whole PROGRAM ${name} LABELS unit long FILTER ${ARG_FILTER} LIMIT 3600
      ENVIRONMENT ${ARG_ENVIRONMENT})
  endif()
endfunction()
