#include "tests/unit/compiler/ptx_runner.h"

namespace bm::test {
namespace {

// Far apart, so that an index that runs away does not reach the next buffer.
constexpr uint64_t kPtxFirst = uint64_t{7} << 36, kPtxApart = uint64_t{1} << 36;

class PtxBuffers final : public sim::ptx::Memory {
 public:
  PtxBuffers(std::span<std::vector<std::byte>> buffers, uint64_t shift)
      : buffers_(buffers), shift_(shift) {}

  uint64_t address(size_t i) const { return kPtxFirst + i * kPtxApart + shift_; }

  std::byte* at(uint64_t where, uint32_t bytes, sim::ptx::Access) override {
    if (where < kPtxFirst) return nullptr;
    const uint64_t i = (where - kPtxFirst) / kPtxApart, offset = (where - kPtxFirst) % kPtxApart;
    if (i >= buffers_.size() || offset < shift_ || offset - shift_ + bytes > buffers_[i].size())
      return nullptr;
    return buffers_[i].data() + (offset - shift_);
  }

 private:
  std::span<std::vector<std::byte>> buffers_;
  uint64_t shift_;
};

}  // namespace

hal::Arch ptx_arch() {
  hal::Arch arch;
  arch.vendor = hal::Vendor::kNv;
  arch.name = "sm_90";
  arch.units = 4;
  arch.max_block = 1024;
  arch.shared_memory_bytes = 48 << 10;
  return arch;
}

Result<PtxRun> run_on_ptx(const hal::CodeObject& code, std::span<std::vector<std::byte>> buffers,
                          std::span<const int64_t> vars, uint64_t shift) {
  const std::string_view text(reinterpret_cast<const char*>(code.image.data()),
                              code.image.empty() ? 0 : code.image.size() - 1);
  const auto module = BM_TRY(sim::ptx::parse(text));
  PtxBuffers memory(buffers, shift);
  std::vector<uint64_t> words;
  for (size_t i = 0; i < buffers.size(); ++i) words.push_back(memory.address(i));
  for (int64_t v : vars) words.push_back(static_cast<uint64_t>(v));
  const auto size = [&](size_t axis) {
    return static_cast<uint32_t>(code.grid[axis].evaluate(vars));
  };
  const sim::ptx::KernelInfo* kernel = module->find(code.entry);
  const uint32_t dynamic =
      kernel != nullptr && kernel->uses_dynamic_shared ? code.launch_memory_bytes : 0;
  const sim::ptx::Launch launch{.kernel = code.entry,
                                .grid = {size(0), size(1), size(2)},
                                .block = {code.block.x, code.block.y, code.block.z},
                                .dynamic_shared = dynamic,
                                .params = std::as_bytes(std::span(words)),
                                .max_instructions = 200'000'000,
                                .checks = {.uninitialised_shared = true, .shared_races = true}};
  if (launch.grid.volume() == 0) return PtxRun{};
  const auto done = sim::ptx::run(*module, launch, memory);
  if (!done) return fail(Code::kInternal, "{}", done.error().text());
  return PtxRun{done->lane_instructions, done->traffic};
}

}  // namespace bm::test
