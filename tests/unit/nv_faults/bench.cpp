#include "tests/unit/nv_faults/bench.h"

#include <algorithm>
#include <cstring>
#include <ostream>

#include "drivers/nv/rm_ioctl/rm.h"

namespace bm::nv::faults {

Bench::Bench(const sim::nv::Options& options) : system_(sim::nv::FakeNvSystem::create(options)) {}

Result<std::unique_ptr<runtime::Device>> Bench::open_unit(uint32_t index) {
  auto kernel = BM_TRY(open_rm(*system_, {.index = index}));
  auto made = BM_TRY(nv::make_device(std::move(kernel)));
  return runtime::make_device(std::move(made), fmt::format("NV:{}", index), "PTX");
}

Status Bench::open(uint32_t index) {
  device_ = BM_TRY(open_unit(index));
  return {};
}

void Bench::close() {
  programs_.clear();
  buffers_.clear();
  device_.reset();
}

Result<hal::Buffer*> Bench::allocate(uint64_t bytes, bool host_visible) {
  buffers_.push_back(BM_TRY(hal().allocate({.size = bytes, .host_visible = host_visible})));
  return buffers_.back().get();
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
  code.local_memory_bytes = kernel.shared_bytes;
  return code;
}

Result<const hal::Program*> Bench::load(const KernelText& kernel) {
  programs_.push_back(BM_TRY(hal().load(code(kernel))));
  return programs_.back().get();
}

Status Bench::run(hal::QueueKind kind, std::vector<hal::Command> commands) {
  const runtime::Point point = BM_TRY(device_->stream().submit(kind, commands));
  return device_->stream().wait(point);
}

Status Bench::launch(const KernelText& kernel, uint64_t at, hal::Dim3 grid) {
  const hal::Program* const program = BM_TRY(load(kernel));
  hal::Buffer* const argument = BM_TRY(allocate(sizeof at, true));
  std::memcpy(argument->host(), &at, sizeof at);
  return run(hal::QueueKind::kCompute, {hal::Dispatch{program, argument->va(), grid}});
}

Status Bench::copy(hal::QueueKind kind, uint64_t to, uint64_t from, uint64_t bytes) {
  return run(kind, {hal::Copy{hal::GpuVa{to}, hal::GpuVa{from}, bytes}});
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

void PrintTo(const Planted& fault, std::ostream* out) { *out << fault.name; }

}  // namespace bm::nv::faults
