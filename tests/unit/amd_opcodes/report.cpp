#include "tests/unit/amd_opcodes/report.h"

#include <cstdlib>
#include <cstring>
#include <vector>

#include "compiler/targets/target.h"
#include "compiler/toolchain/toolchain.h"
#include "runtime/base/elf.h"
#include "tests/sim/amd/exec/interpreter.h"
#include "tests/sim/amd/isa/instruction.h"
#include "tests/sim/amd/isa/spelling.h"

namespace bm::test {
namespace {

// Filler behind a program's end, never executed.
constexpr std::string_view kFiller = "s_code_end";

Result<std::vector<uint32_t>> code_words(std::span<const std::byte> object) {
  const elf::File file = BM_TRY(elf::File::parse(object));
  for (const elf::Section& section : file.sections()) {
    if (section.name != ".text") continue;
    std::vector<uint32_t> words(section.bytes.size() / 4);
    std::memcpy(words.data(), section.bytes.data(), words.size() * 4);
    return words;
  }
  return fail(Code::kCorrupt, "an object without code");
}

void look_at_line(std::string_view text, std::span<const uint32_t> words, std::string_view chip,
                  OpcodeReport& report) {
  const sim::amd::Isa isa = *sim::amd::isa_of(chip);
  const std::string theirs = sim::amd::normal(std::string(text));
  const auto ours = sim::amd::decode(words, isa);
  if (!ours) {
    report.unverified.insert(fmt::format("{}: LLVM says {}, nothing here", chip, theirs));
    return;
  }
  const std::string said = sim::amd::normal(sim::amd::to_text(*ours, isa));
  if (said != theirs)
    report.unverified.insert(fmt::format("{}: LLVM says {}, here {}", chip, theirs, said));
  for (const sim::amd::OpcodeRow* row : {ours->row, ours->row_y}) {
    if (row == nullptr || row->name == kFiller) continue;
    ++report.opcodes[std::string(row->name)];
    if (!sim::amd::is_executable(*row))
      report.unverified.insert(fmt::format("{}: {} is not executed", chip, row->name));
  }
  ++report.instructions;
}

}  // namespace

Status look_at(std::span<const std::byte> object, std::string_view chip, OpcodeReport& report) {
  hal::Arch arch;
  arch.vendor = hal::Vendor::kAmd;
  arch.name = std::string(chip);
  const std::vector<uint32_t> words = BM_TRY(code_words(object));
  const std::string text = BM_TRY(compiler::llvm_disassemble(object, compiler::target_info(arch)));
  // Lines of instructions: "    1c:\ts_endpgm". Names of kernels end in a colon.
  for (size_t at = 0; at < text.size();) {
    const size_t end = std::min(text.find('\n', at), text.size());
    const std::string_view line = std::string_view(text).substr(at, end - at);
    at = end + 1;
    const size_t colon = line.find(":\t");
    if (colon == std::string_view::npos) continue;
    const uint64_t offset = std::strtoull(line.data(), nullptr, 16);
    if (offset / 4 >= words.size()) return fail(Code::kCorrupt, "a line beyond the code");
    look_at_line(line.substr(colon + 1), std::span(words).subspan(offset / 4), chip, report);
  }
  ++report.kernels;
  return {};
}

std::string to_string(const OpcodeReport& report) {
  std::string text = fmt::format("{} kernels, {} instructions, {} opcodes emitted, {} unverified\n",
                                 report.kernels, report.instructions, report.opcodes.size(),
                                 report.unverified.size());
  for (const std::string& line : report.unverified) text += "  " + line + "\n";
  return text;
}

}  // namespace bm::test
