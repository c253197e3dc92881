#pragma once
// Finds libraries of a CUDA toolkit. Private to nvrtc.cpp and nvjitlink.cpp.

#include <string>
#include <string_view>
#include <vector>

#include "runtime/base/result.h"

namespace bm::compiler {

/// A library that stays loaded: unloading compilers is not safe.
struct CudaLibrary {
  void* handle = nullptr;
  std::string path;  ///< as given to the loader
  /// nullptr if it does not exist.
  void* symbol(const std::string& name) const;
};

/// Places where `name` ("nvrtc") may lie, best first: CUDA_PATH, /usr/local/cuda*, the loader's own
/// search with the versions a toolkit has had, then the folders of Python packages.
std::vector<std::string> cuda_library_candidates(std::string_view name);

/// Errors: kNotFound naming the places and what to install.
Result<CudaLibrary> open_cuda_library(std::string_view name);

}  // namespace bm::compiler
