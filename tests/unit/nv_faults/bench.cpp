#include "tests/unit/nv_faults/bench.h"

#include <cstring>

#include "drivers/nv/rm_ioctl/rm.h"

namespace bm::nv::faults {

Bench::Bench(const sim::nv::Options& options) : system_(sim::nv::FakeNvSystem::create(options)) {}

Result<std::unique_ptr<runtime::Device>> Bench::open_unit(uint32_t index) {
  auto kernel = BM_TRY(open_rm(*system_, {.index = index}));
  auto made = BM_TRY(nv::make_device(std::move(kernel)));
  return runtime::make_device(std::move(made), fmt::format("NV:{}", index), "PTX");
}

hal::CodeObject Bench::code(const KernelText& kernel) {
  const std::string text = fmt::format(
      ".version 6.4\n.target sm_75\n.address_size 64\n"
      ".visible .entry {}(.param .u64 at) {{\n"
      "  .reg .pred %p<4>;\n  .reg .b32 %r<8>;\n  .reg .b64 %d<8>;\n"
      "  ld.param.u64 %d1, [at];\n{}\n  ret;\n}}\n",
      kernel.name, kernel.body);
  hal::CodeObject code;
  code.entry = kernel.name;
  code.arch = hal().arch().name;
  const auto* const first = reinterpret_cast<const std::byte*>(text.c_str());
  code.image.assign(first, first + text.size() + 1);
  code.num_buffers = 1;
  code.block = kernel.block;
  code.shared_memory_bytes = kernel.shared_bytes;
  return code;
}

Status Bench::works() {
  constexpr uint64_t kBytes = 32 * 8;
  constexpr KernelText kNumbers = {"numbers",
                                   "  mov.u32 %r1, %tid.x;\n"
                                   "  mul.wide.u32 %d2, %r1, 8;\n"
                                   "  add.s64 %d3, %d1, %d2;\n"
                                   "  add.s64 %d2, %d2, 7;\n"
                                   "  st.global.u64 [%d3], %d2;\n"};
  hal::Buffer* const video = BM_TRY(allocate(kBytes));
  hal::Buffer* const seen = BM_TRY(allocate(kBytes, true));
  BM_TRY(launch(kNumbers, hal::raw(video->va())));
  BM_TRY(copy(hal::QueueKind::kCopy, hal::raw(seen->va()), hal::raw(video->va()), kBytes));
  for (uint64_t i = 0; i < 32; ++i) {
    uint64_t number = 0;
    std::memcpy(&number, seen->host() + i * 8, 8);
    if (number != i * 8 + 7) return fail(Code::kInternal, "number {} is {}", i, number);
  }
  return {};
}

}  // namespace bm::nv::faults
