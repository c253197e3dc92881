#include "tests/unit/compiler/amd_runner.h"

#include "drivers/amd/program/code_object.h"
#include "drivers/amd/program/launch_plan.h"
#include "tests/sim/amd/exec/interpreter.h"

namespace bm::test {
namespace {

using sim::amd::Access;

// Far apart, so that an index that runs away does not reach the next buffer.
constexpr uint64_t kCode = uint64_t{3} << 36, kArguments = uint64_t{5} << 36;
constexpr uint64_t kFirst = uint64_t{7} << 36, kApart = uint64_t{1} << 36;

class Places final : public sim::amd::Memory {
 public:
  Places(std::span<std::vector<std::byte>> buffers, std::span<const std::byte> code,
         std::vector<std::byte> arguments, uint64_t shift)
      : buffers_(buffers),
        code_(code.begin(), code.end()),
        arguments_(std::move(arguments)),
        shift_(shift) {}

  Place at(uint64_t where, uint32_t bytes, Access access) override {
    if (where < kArguments) return inside(code_, where, kCode, bytes, access != Access::kWrite);
    if (where < kFirst)
      return inside(arguments_, where, kArguments, bytes, access == Access::kRead);
    const uint64_t i = (where - kFirst) / kApart;
    if (i >= buffers_.size()) return {};
    return inside(buffers_[i], where, kFirst + i * kApart + shift_, bytes,
                  access != Access::kExecute);
  }

 private:
  static Place inside(std::vector<std::byte>& range, uint64_t where, uint64_t start, uint32_t bytes,
                      bool is_allowed) {
    if (where < start || where - start > range.size() || range.size() - (where - start) < bytes)
      return {};
    return {is_allowed ? range.data() + (where - start) : nullptr, !is_allowed};
  }

  std::span<std::vector<std::byte>> buffers_;
  std::vector<std::byte> code_, arguments_;
  uint64_t shift_;
};

}  // namespace

hal::Arch amd_arch(std::string_view chip) {
  hal::Arch arch;
  arch.vendor = hal::Vendor::kAmd;
  arch.name = arch.cpu = std::string(chip);
  if (!chip.starts_with("gfx9")) arch.features = "+cumode";
  arch.units = 4;
  arch.max_block = 1024;
  arch.shared_memory_bytes = 64 << 10;
  return arch;
}

Result<AmdRun> run_on_amd(const hal::CodeObject& code, std::span<std::vector<std::byte>> buffers,
                          std::span<const int64_t> vars, uint64_t shift) {
  const amd::ChipRow* chip = amd::find_chip(code.arch);
  if (chip == nullptr) return fail(Code::kUnsupported, "no chip {}", code.arch);
  amd::ProgramImage image = BM_TRY(amd::load_code_object(code.image, code.entry, *chip));
  const amd::LaunchPlan plan = BM_TRY(amd::plan_launch(*chip, 0, image.kernel(), code));
  BM_TRY(image.relocate(kCode));
  // Kernels ask for nothing but their arguments, and on RDNA2 for a descriptor of a stack that they
  // do not have.
  const uint32_t first = image.kernel().takes_private_buffer ? 4 : 0;
  if (plan.num_user_data != first + 2 || plan.private_bytes != 0 || plan.has_hidden_arguments())
    return fail(Code::kInternal,
                "kernel {}: {} start-up registers, {} bytes of stack, {} of {} "
                "bytes of arguments hidden",
                code.entry, plan.num_user_data, plan.private_bytes,
                plan.kernarg_bytes - plan.explicit_bytes, plan.kernarg_bytes);
  std::vector<uint64_t> words;
  for (size_t i = 0; i < buffers.size(); ++i) words.push_back(kFirst + i * kApart + shift);
  for (const int64_t v : vars) words.push_back(static_cast<uint64_t>(v));
  const auto block = std::as_bytes(std::span(words));
  Places memory(buffers, image.bytes(), {block.begin(), block.end()}, shift);
  const auto size = [&](size_t axis) {
    return static_cast<uint32_t>(code.grid[axis].evaluate(vars));
  };
  sim::amd::Dispatch launch;
  const auto isa = sim::amd::isa_of(code.arch);
  if (!isa) return fail(Code::kUnsupported, "nothing executes {}", code.arch);
  launch.isa = *isa;
  launch.entry = kCode + image.kernel().entry_offset;
  launch.rsrc1 = plan.rsrc1;
  launch.rsrc2 = plan.rsrc2;
  launch.rsrc3 = plan.rsrc3;
  launch.user_sgprs.assign(first, 0xdeadbeef);
  launch.user_sgprs.push_back(static_cast<uint32_t>(kArguments & UINT32_MAX));
  launch.user_sgprs.push_back(static_cast<uint32_t>(kArguments >> 32));
  // As many as the kernel has room for, whatever it asks for.
  launch.user_sgprs.resize(plan.rsrc2 >> 1 & 0x1f);
  launch.grid = {size(0), size(1), size(2)};
  launch.group = {code.block.x, code.block.y, code.block.z};
  launch.lds_bytes = plan.group_bytes;
  launch.wave_size = image.kernel().is_wave32 ? 32 : 64;
  launch.max_instructions = 200'000'000;
  if (launch.grid.x == 0 || launch.grid.y == 0 || launch.grid.z == 0) return AmdRun{};
  auto done = sim::amd::run(launch, memory);
  if (!done) return fail(Code::kInternal, "{}", done.error().text());
  return AmdRun{done->instructions, std::move(done->opcodes), done->lds_conflicts};
}

}  // namespace bm::test
