#pragma once
// The page at "/": a chat in one file that asks nobody but this server.

#include <string_view>

namespace bm::serve {

/// Of serve/page.html, as it was when this was built.
std::string_view page();

/// What the page may do: its own script and style, requests to this server; in no one's frame.
inline constexpr const char* kPagePolicy =
    "default-src 'none'; script-src 'unsafe-inline'; style-src 'unsafe-inline'; connect-src "
    "'self'; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'";

}  // namespace bm::serve
