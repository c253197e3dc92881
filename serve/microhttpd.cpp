#include "serve/microhttpd.h"

#include <dlfcn.h>

namespace bm::serve {
namespace {

RefuseMalformed on_malformed = nullptr;

}  // namespace

Mhd& mhd() {
  static Mhd calls;
  return calls;
}

Status load_mhd(RefuseMalformed refuse) {
  constexpr const char* kLibrary = "libmicrohttpd.so.12";
  if (mhd().start_daemon != nullptr) return {};
  void* const handle = ::dlopen(kLibrary, RTLD_NOW | RTLD_LOCAL);
  if (handle == nullptr) {
    const char* const why = ::dlerror();
    return fail(Code::kNotFound, "serve needs libmicrohttpd ({}): install libmicrohttpd12",
                why == nullptr ? kLibrary : why);
  }
  Mhd calls;
  const char* missing = nullptr;
#define BM_MHD_LOAD(name)                                                             \
  calls.name = reinterpret_cast<decltype(calls.name)>(::dlsym(handle, "MHD_" #name)); \
  if (calls.name == nullptr && missing == nullptr) missing = "MHD_" #name;
  BM_MHD_CALLS(BM_MHD_LOAD)
#undef BM_MHD_LOAD
  if (missing != nullptr) return fail(Code::kUnsupported, "{} lacks {}", kLibrary, missing);
  on_malformed = refuse;
  mhd() = calls;
  return {};
}

}  // namespace bm::serve

/// The library has no option for the pages of HTML it answers malformed requests with. It queues
/// them by its own public function, which the dynamic linker looks up in the program first: this is
/// what it finds (serve/CMakeLists.txt exports it). The program itself calls the one of the
/// library, through mhd(), so whoever comes here is the library with an error. A library that is
/// linked to itself (-Bsymbolic) does not come here: then its pages are sent. Source: libmicrohttpd
/// 0.9.75 and 1.0.1, connection.c, transmit_error_response_len().
extern "C" __attribute__((visibility("default"))) MHD_Result
MHD_queue_response(MHD_Connection* connection, unsigned status, MHD_Response* /*page*/) {
  return bm::serve::on_malformed ? bm::serve::on_malformed(connection, status) : MHD_NO;
}
