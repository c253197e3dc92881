// Any bytes as an AMD code object: loading must neither crash nor read outside, errors must say
// something, and what is accepted must be consistent and relocatable.

#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>

#include "drivers/amd/program/code_object.h"
#include "drivers/amd/program/launch_plan.h"
#include "runtime/base/check.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const auto bytes = std::as_bytes(std::span(data, size));
  for (const bm::amd::ChipRow& chip : bm::amd::chips()) {
    for (const std::string_view kernel : {"lookup", "stack"}) {
      auto image = bm::amd::load_code_object(bytes, kernel, chip);
      if (!image) {
        BM_CHECK(!image.error().message.empty());
        continue;
      }
      const bm::amd::KernelFacts& k = image->kernel();
      BM_CHECK(k.descriptor_offset % 64 == 0 && k.entry_offset % 256 == 0);
      BM_CHECK(k.descriptor_offset + 64 <= image->bytes().size());
      BM_CHECK(k.entry_offset < image->bytes().size());
      BM_CHECK(image->relocate(0x10'0000'0000).has_value());
      BM_CHECK(image->relocate(0x1000).has_value());
      bm::hal::CodeObject code;
      code.entry = kernel;
      code.block = {128, 1, 1};
      const auto plan = bm::amd::plan_launch(chip, 0, k, code);
      if (plan) BM_CHECK(plan->group_bytes <= chip.lds_bytes && plan->num_user_data <= 15);
    }
  }
  return 0;
}
