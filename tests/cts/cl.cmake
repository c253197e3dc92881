include_guard(GLOBAL)

# PoCL keeps compiled kernels under the home folder unless told otherwise.
function(bm_cl_test_options target)
  set_property(TEST ${target} APPEND PROPERTY ENVIRONMENT
    "POCL_CACHE_DIR=${CMAKE_BINARY_DIR}/test-cache/pocl")
endfunction()
