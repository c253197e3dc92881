// Any words: the decoder for CDNA3, RDNA3 and RDNA4 must neither crash nor read past them, and has
// a text for whatever it accepts; the same words as a kernel end in a fault or at a limit.

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <vector>

#include "runtime/base/check.h"
#include "tests/sim/amd/exec/interpreter.h"
#include "tests/sim/amd/isa/instruction.h"

namespace {

using namespace bm::sim::amd;

class SmallMemory : public Memory {
 public:
  static constexpr uint64_t kBase = 0x10000;
  explicit SmallMemory(size_t bytes) : bytes_(bytes) {}
  Place at(uint64_t address, uint32_t bytes, Access) override {
    if (address < kBase || address - kBase > bytes_.size()) return {};
    if (bytes_.size() - (address - kBase) < bytes) return {};
    return {bytes_.data() + (address - kBase), false};
  }
  std::byte* host() { return bytes_.data(); }

 private:
  std::vector<std::byte> bytes_;
};

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  if (size < 4 || size > 4096) return 0;
  std::vector<uint32_t> words(size / 4);
  std::memcpy(words.data(), data, words.size() * 4);
  for (const Isa isa : {Isa::kGfx9, Isa::kGfx11, Isa::kGfx115, Isa::kGfx12}) {
    for (size_t at = 0; at < words.size();) {
      const auto decoded = decode(std::span(words).subspan(at), isa);
      if (decoded) BM_CHECK(!to_text(*decoded, isa).empty());
      at += decoded ? decoded->bytes / 4 : 1;
    }
    SmallMemory memory(8192);
    std::memcpy(memory.host(), words.data(), words.size() * 4);
    Dispatch d;
    d.isa = isa;
    d.wave_size = isa == Isa::kGfx9 ? 64 : 32;
    d.rsrc3 = 3;
    d.entry = SmallMemory::kBase;
    d.group = {40, 1, 1};
    d.lds_bytes = 128;
    d.rsrc1 = 3;
    d.rsrc2 = 2 << 1;
    d.user_sgprs = {SmallMemory::kBase + 4096, 0};
    d.max_instructions = 300;
    const auto result = run(d, memory);
    if (!result) BM_CHECK(!result.error().text().empty());
  }
  return 0;
}
