// The DEV grammar: any text either parses and prints back to the same target, or fails with a
// message.
#include <cstddef>
#include <cstdint>
#include <string_view>

#include "runtime/base/check.h"
#include "runtime/target.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace bm::runtime;
  const std::string_view text(reinterpret_cast<const char*>(data), size);
  const auto targets = parse_targets(text);
  if (!targets) {
    BM_CHECK(targets.error().code == bm::Code::kInvalidArgument);
    BM_CHECK(!targets.error().message.empty());
    return 0;
  }
  for (const Target& target : *targets) {
    const std::string printed = to_string(target);
    const auto again = parse_target(printed);
    BM_CHECK(again.has_value());
    BM_CHECK(*again == target);
    BM_CHECK(to_string(*again) == printed);
  }
  return 0;
}
