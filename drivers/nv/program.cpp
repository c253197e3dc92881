#include "drivers/nv/program.h"

#include <algorithm>
#include <cstring>

#include "drivers/nv/cubin_loader.h"
#include "runtime/base/elf.h"

namespace bm::nv {
namespace {

// CUDA up to 12 writes ABI version 7: sm in the lowest byte, bit 11 for "a" targets. CUDA 13 writes
// version 8: sm in the second byte, the "a" in the .nv.compat attribute ACCELERATOR_TARGET.
constexpr uint8_t kAbi12 = 7, kAbi13 = 8;
constexpr uint8_t kCompatAcceleratorTarget = 0x09;

Result<Container> container_of(const elf::File& file) {
  const uint32_t flags = file.flags();
  if (file.abi_version() <= kAbi12)
    return Container{.sm = flags & 0xff, .is_sm_specific = (flags & 0x800) != 0};
  if (file.abi_version() != kAbi13)
    return fail(Code::kUnsupported,
                "cubin: ABI version {}; versions up to {} are known: compile with CUDA 13 or older",
                file.abi_version(), kAbi13);
  Container container{.sm = (flags >> 8) & 0xff, .is_sm_specific = false};
  if (const elf::Section* compat = file.find_section(".nv.compat"))
    for (const InfoRecord& record : BM_TRY(read_records(*compat)))
      if (record.attribute == kCompatAcceleratorTarget && record.value != 0)
        container.is_sm_specific = true;
  return container;
}

/// Chips of the embedded line run only their own code.
bool is_embedded(uint32_t sm) { return sm == 72 || sm == 87 || sm == 101 || sm == 110; }

Status check_runs_on(const Container& code, uint32_t sm) {
  const bool is_same = code.sm == sm;
  const bool is_compatible =
      code.sm / 10 == sm / 10 && code.sm < sm && !is_embedded(code.sm) && !is_embedded(sm);
  if (is_same || (is_compatible && !code.is_sm_specific)) return {};
  return fail(Code::kUnsupported, "cubin is for sm_{}{}, the device is sm_{}: compile for sm_{}",
              code.sm, code.is_sm_specific ? "a" : "", sm, sm);
}

/// Why these bytes are no cubin, where that is recognisable.
Status check_is_cubin(std::span<const std::byte> file) {
  const std::string_view text(reinterpret_cast<const char*>(file.data()),
                              std::min<size_t>(file.size(), 4096));
  constexpr std::string_view kFatBinary = "\x50\xed\x55\xba";
  if (text.starts_with(kFatBinary))
    return fail(Code::kUnsupported,
                "program is a fat binary, not a cubin: compile with -cubin for one architecture");
  if (!text.starts_with("\x7f"
                        "ELF") &&
      text.find(".version") != text.npos)
    return fail(Code::kUnsupported,
                "program is PTX text, not a cubin: nvJitLink or ptxas makes one; BM_NV_CODE=ptx is "
                "for models that execute PTX");
  return {};
}

}  // namespace

namespace {

/// Replaces `count` bits from bit `first` of the 128-bit instruction at `at`.
void put_bits(std::byte* at, uint32_t first, uint32_t count, uint64_t value) {
  uint64_t words[2];
  std::memcpy(words, at, sizeof words);
  for (uint32_t i = 0; i < count; ++i) {
    const uint32_t bit = first + i;
    const uint64_t mask = uint64_t{1} << (bit % 64);
    words[bit / 64] = ((value >> i) & 1) != 0 ? words[bit / 64] | mask : words[bit / 64] & ~mask;
  }
  std::memcpy(at, words, sizeof words);
}

/// True where `name` follows ".entry" and ends there.
bool has_entry(std::string_view text, std::string_view name) {
  constexpr std::string_view kDirective = ".entry";
  constexpr std::string_view kSpace = " \t\r\n";
  for (size_t at = text.find(kDirective); at != text.npos; at = text.find(kDirective, at)) {
    at = text.find_first_not_of(kSpace, at + kDirective.size());
    if (at == text.npos) return false;
    if (!text.substr(at).starts_with(name)) continue;
    const size_t end = at + name.size();
    if (end == text.size() || (kSpace.find(text[end]) != text.npos) || text[end] == '(' ||
        text[end] == '{')
      return true;
  }
  return false;
}

}  // namespace

Status ProgramImage::relocate(uint64_t address) {
  constexpr uint64_t kAddressEnd = uint64_t{1} << 49;  // of the smallest address space, sm_75
  if (address % kAlignment != 0 || address >= kAddressEnd - bytes_.size())
    return fail(Code::kInvalidArgument, "program image at {:#x}: not a multiple of {} below {:#x}",
                address, kAlignment, kAddressEnd);
  for (const Fixup& fixup : fixups_) {
    std::byte* at = bytes_.data() + fixup.place;
    const uint64_t value = fixup.value + (fixup.is_relative ? address : 0);
    const uint64_t call = value >> 2;
    const uint32_t low = static_cast<uint32_t>(value), high = static_cast<uint32_t>(value >> 32);
    switch (fixup.field) {
      case Field::kWord64: std::memcpy(at, &value, 8); break;
      case Field::kWord32: std::memcpy(at, &low, 4); break;
      case Field::kLow32At32: std::memcpy(at + 4, &low, 4); break;
      case Field::kHigh32At32: std::memcpy(at + 4, &high, 4); break;
      case Field::kCall47: put_bits(at, 34, 47, call); break;
      case Field::kCall55:
        put_bits(at, 16, 8, call & 0xff);
        put_bits(at, 34, 47, call >> 8);
        break;
    }
  }
  return {};
}

Result<ProgramImage> load_cubin(std::span<const std::byte> file, std::string_view kernel,
                                uint32_t sm) {
  BM_TRY(check_is_cubin(file));
  const elf::File parsed = BM_TRY(elf::File::parse(file));
  if (parsed.machine() != elf::kMachineCuda)
    return fail(Code::kUnsupported, "program is for ELF machine {}, not a cubin ({})",
                parsed.machine(), elf::kMachineCuda);
  const Container container = BM_TRY(container_of(parsed));
  BM_TRY(check_runs_on(container, sm));
  return CubinLoader(parsed, container).load(kernel);
}

Result<ProgramImage> load_ptx(std::span<const std::byte> text, std::string_view kernel,
                              uint32_t sm) {
  constexpr uint32_t kParamBase = 0x160;
  const std::string_view view(reinterpret_cast<const char*>(text.data()), text.size());
  if (view.empty() || view.back() != 0)
    return fail(Code::kInvalidArgument, "PTX of kernel '{}' does not end in NUL", kernel);
  if (!has_entry(view.substr(0, view.size() - 1), kernel))
    return fail(Code::kNotFound, "PTX has no .entry '{}'", kernel);
  ProgramImage program;
  program.bytes_.assign(text.begin(), text.end());
  program.kernel_.name = kernel;
  program.kernel_.sm = sm;
  program.kernel_.is_ptx = true;
  program.kernel_.param_base = kParamBase;
  program.kernel_.code_bytes = text.size();
  program.kernel_.banks[0].bytes = kParamBase;
  return program;
}

}  // namespace bm::nv
