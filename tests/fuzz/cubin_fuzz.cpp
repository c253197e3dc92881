// Any bytes as a cubin: loading must neither crash nor read outside, errors must say something, and
// what is accepted must be consistent and relocatable. Seeds: tests/unit/nv/cubin_corpus_test.cpp.

#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>

#include "drivers/nv/program.h"
#include "runtime/base/check.h"

namespace {

void check_consistent(bm::nv::ProgramImage& image) {
  const bm::nv::KernelInfo& k = image.kernel();
  BM_CHECK(image.bytes().size() % bm::nv::ProgramImage::kAlignment == 0);
  BM_CHECK(k.code_offset % bm::nv::ProgramImage::kAlignment == 0);
  BM_CHECK(k.code_offset + k.code_bytes + 4096 <= image.bytes().size());
  BM_CHECK(k.registers >= 1 && k.registers <= 255 && k.barriers <= 16);
  BM_CHECK(k.max_threads <= 1024 && k.shared_bytes >= k.shared_reserved_bytes);
  BM_CHECK(k.param_base + k.param_bytes <= k.banks[0].bytes);
  for (size_t i = 1; i < k.banks.size(); ++i)
    BM_CHECK(k.banks[i].offset + k.banks[i].bytes <= image.bytes().size());
  for (const bm::nv::Parameter& p : k.parameters) BM_CHECK(p.offset + p.bytes <= k.param_bytes);
  BM_CHECK(image.relocate(0x10'0000'0000).has_value());
  BM_CHECK(image.relocate(0x100).has_value());
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const auto bytes = std::as_bytes(std::span(data, size));
  for (const uint32_t sm : {75u, 89u, 90u, 120u}) {
    for (const std::string_view kernel : {"first", "second"}) {
      auto image = bm::nv::load_cubin(bytes, kernel, sm);
      if (image)
        check_consistent(*image);
      else
        BM_CHECK(!image.error().message.empty());
    }
  }
  (void)bm::nv::load_ptx(bytes, "first", 90);
  return 0;
}
