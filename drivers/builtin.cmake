# Included by drivers/CMakeLists.txt after every driver's folder.
bm_library(bm_drivers
  SOURCES builtin.cpp
  DEPS bm_hal bm_cpu bm_null bm_ref bm_amd bm_cl bm_nv bm_cuda)
