include_guard(GLOBAL)

# PoCL keeps compiled kernels under the home folder unless told otherwise. What it leaks itself is
# not ours to report.
function(bm_cl_test_options target)
  set_property(TEST ${target} APPEND PROPERTY ENVIRONMENT
    "POCL_CACHE_DIR=${CMAKE_BINARY_DIR}/test-cache/pocl"
    "LSAN_OPTIONS=suppressions=${PROJECT_SOURCE_DIR}/tests/cts/cl.lsan:print_suppressions=0")
endfunction()
