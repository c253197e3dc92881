#pragma once
// libmicrohttpd, loaded when a server starts: other commands start without it and the TLS library
// behind it.

#include <microhttpd.h>

#include "runtime/base/result.h"

namespace bm::serve {

#define BM_MHD_CALLS(call)                                                                        \
  call(add_response_header) call(create_response_from_buffer) call(create_response_from_callback) \
      call(destroy_response) call(get_connection_info) call(get_connection_values)                \
          call(lookup_connection_value) call(queue_response) call(start_daemon) call(stop_daemon)
struct Mhd {
#define BM_MHD_MEMBER(name) decltype(&MHD_##name) name = nullptr;
  BM_MHD_CALLS(BM_MHD_MEMBER)
#undef BM_MHD_MEMBER
};

/// Its functions; null before load_mhd().
Mhd& mhd();

/// Answers `connection` with `status`, in place of the library, which has found the request
/// malformed or too large and closes the connection afterwards. MHD_NO: it is closed unanswered.
using RefuseMalformed = MHD_Result (*)(MHD_Connection* connection, unsigned status);

/// Errors: kNotFound, naming the package; kUnsupported (a call is missing).
Status load_mhd(RefuseMalformed refuse);

}  // namespace bm::serve
