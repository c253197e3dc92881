#include "tests/cts/nv_kernels.h"

#include <algorithm>
#include <string>

#include "tests/cts/kernels.h"

namespace bm::cts {

/// The text up to the first kernel, and the kernel: a launch finds one entry at its address.
Result<hal::CodeObject> ptx_kernel(std::string_view name, const hal::Device& device) {
  constexpr std::string_view kEntry = ".visible .entry ";
  const std::vector<std::byte> file = BM_TRY(read_image(BM_CTS_PTX));
  const std::string_view all(reinterpret_cast<const char*>(file.data()), file.size());
  const size_t begin = all.find(fmt::format("{}{}(", kEntry, name));
  if (begin == std::string_view::npos) return fail(Code::kNotFound, "no kernel '{}'", name);
  const size_t end = std::min(all.find(kEntry, begin + 1), all.size());
  std::string text(all.substr(0, all.find(kEntry)));
  text += all.substr(begin, end - begin);
  return make_code(name, device, std::as_bytes(std::span(text.c_str(), text.size() + 1)));
}

std::vector<Exemption> ptx_exemptions() {
  return {{"dispatch.undefined_symbol", "the simulator's programs are PTX text, linked by nobody"},
          {"fault.damaged_code", "the simulator's programs are PTX text"}};
}

}  // namespace bm::cts
