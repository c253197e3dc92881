#pragma once
// The CUDA driver functions this driver calls, loaded at run time.

#include <memory>
#include <string>
#include <string_view>

#include "drivers/cuda/types.h"
#include "runtime/base/result.h"

namespace bm {
class System;
}

namespace bm::cuda {

/// Function pointers under the vendor's names. Tests copy a table and replace entries.
struct Api {
// Members and the symbols they are loaded from must agree: one list makes both (api.cpp).
#define BM_CUDA_REQUIRED(member, symbol, parameters) CuResult(*member) parameters = nullptr;
#define BM_CUDA_OPTIONAL(member, symbol, parameters) CuResult(*member) parameters = nullptr;
#define BM_CUDA_GRAPH(member, symbol, parameters) CuResult(*member) parameters = nullptr;
#include "drivers/cuda/functions.inc"
#undef BM_CUDA_REQUIRED
#undef BM_CUDA_OPTIONAL
#undef BM_CUDA_GRAPH
  std::string library;  ///< what was loaded, for messages

  bool has_graphs() const { return cuGraphCreate != nullptr; }
};
using ApiPtr = std::shared_ptr<const Api>;

/// The functions of `library`, or of the first that works among libcuda.so.1 and the places where
/// containers and WSL put it; resolved once per process and never unloaded. A toolkit's stub is
/// passed over. Errors: kNotFound with every attempt; kUnsupported naming the missing functions.
Result<ApiPtr> load_api(std::string_view library = {});

/// cuInit. Errors: kNotFound (no GPU, a stub), kUnsupported (library and kernel module differ, with
/// both versions), kIo; each with the remedy.
Status initialize(const Api& api, System& system);
Status initialize(const Api& api);

/// "13.0" of what cuDriverGetVersion says; "?" when it says nothing.
std::string version_text(const Api& api);

}  // namespace bm::cuda
