# Writes OUT, a header with one number made of the sources in ROOT/compiler that decide what code a
# kernel becomes: two builds share cached kernels only if these are equal, comments aside.
#   cmake -DROOT=… -DOUT=… -P SourceHash.cmake
file(GLOB_RECURSE sources RELATIVE "${ROOT}" "${ROOT}/compiler/*.cpp" "${ROOT}/compiler/*.h")
list(FILTER sources EXCLUDE REGEX "^compiler/(cache/|tune/tune)")
list(SORT sources)
set(hashes "")
foreach(source IN LISTS sources)
  file(READ "${ROOT}/${source}" text)
  string(REGEX REPLACE "//[^\n]*" "" text "${text}")
  string(REGEX REPLACE "[ \t\r\n]+" " " text "${text}")
  string(SHA256 hash "${source} ${text}")
  string(APPEND hashes "${hash}")
endforeach()
string(SHA256 hash "${hashes}")
string(SUBSTRING "${hash}" 0 16 hash)
set(text "#pragma once\n// Made by cmake/SourceHash.cmake.\n#define BM_CODEGEN_VERSION \"${hash}\"\n")
file(WRITE "${OUT}" "${text}")
