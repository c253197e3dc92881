# Compiles kernels.c with several code models; target bm_test_kernels, folder BM_TEST_KERNELS.
include_guard(GLOBAL)

set(BM_TEST_KERNELS ${CMAKE_BINARY_DIR}/tests/kernels CACHE INTERNAL "objects of the test kernels")
file(MAKE_DIRECTORY ${BM_TEST_KERNELS})
set(source_folder ${CMAKE_CURRENT_LIST_DIR})
set(common -c -O2 -std=c11 -ffreestanding -fno-stack-protector -fno-common)
set(outputs "")

function(bm_kernel_object compiler name source)
  set(output ${BM_TEST_KERNELS}/${name}.o)
  add_custom_command(OUTPUT ${output}
    COMMAND ${compiler} ${common} ${ARGN} ${source_folder}/${source} -o ${output}
    DEPENDS ${source_folder}/${source} VERBATIM)
  set(outputs ${outputs} ${output} PARENT_SCOPE)
endfunction()

find_program(BM_TEST_CLANG NAMES clang-19 clang)
set(compilers cc=${CMAKE_C_COMPILER})
if(BM_TEST_CLANG)
  list(APPEND compilers clang=${BM_TEST_CLANG})
endif()
set(variants "")
foreach(entry ${compilers})
  string(REGEX MATCH "^([a-z]+)=(.*)$" _ ${entry})
  set(tag ${CMAKE_MATCH_1})
  set(compiler ${CMAKE_MATCH_2})
  bm_kernel_object(${compiler} ${tag}_pic kernels.c -fPIC)
  list(APPEND variants ${tag}_pic)
  if(CMAKE_SYSTEM_PROCESSOR MATCHES "x86_64|AMD64")
    bm_kernel_object(${compiler} ${tag}_noplt kernels.c -fPIC -fno-plt)
    bm_kernel_object(${compiler} ${tag}_static kernels.c -fno-pic -fno-pie)
    bm_kernel_object(${compiler} ${tag}_large kernels.c -fPIC -mcmodel=large)
    bm_kernel_object(${compiler} ${tag}_largestatic kernels.c -fno-pic -fno-pie -mcmodel=large)
    list(APPEND variants ${tag}_noplt ${tag}_static ${tag}_large ${tag}_largestatic)
  endif()
endforeach()
bm_kernel_object(${CMAKE_C_COMPILER} undefined undefined.c -fPIC)
string(REPLACE ";" " " variants "${variants}")
set(BM_TEST_KERNEL_VARIANTS "${variants}" CACHE INTERNAL "variants of kernels.c")
add_custom_target(bm_test_kernels DEPENDS ${outputs})

# Makes the objects known to a test program: BM_TEST_KERNELS, BM_TEST_KERNEL_VARIANTS.
function(bm_use_test_kernels target)
  if(NOT TARGET ${target})
    return()  # left out because a source is missing
  endif()
  add_dependencies(${target} bm_test_kernels)
  target_compile_definitions(${target} PRIVATE BM_TEST_KERNELS="${BM_TEST_KERNELS}"
    BM_TEST_KERNEL_VARIANTS="${BM_TEST_KERNEL_VARIANTS}")
endfunction()
