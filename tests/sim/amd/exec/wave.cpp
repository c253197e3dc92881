#include "tests/sim/amd/exec/wave.h"

namespace bm::sim::amd {
namespace {

constexpr float kFloats[] = {0.5f, -0.5f, 1.0f, -1.0f, 2.0f, -2.0f, 4.0f, -4.0f};
constexpr uint16_t kHalves[] = {0x3800, 0xb800, 0x3c00, 0xbc00, 0x4000,
                                0xc000, 0x4400, 0xc400, 0x3118};
constexpr uint32_t kInverse2Pi32 = 0x3e22f983;
constexpr uint64_t kInverse2Pi64 = 0x3fc45f306dc9c882;

int32_t integer(uint32_t code) {
  return code <= 192 ? static_cast<int32_t>(code - 128) : 192 - static_cast<int32_t>(code);
}

}  // namespace

void run_step(Wave& w, const Step& in) {
  w.honored = 0;
  in.run(w, in);
  if (unhonored(w, in)) w.fail(Fault::Kind::kIllegalOpcode);
}

uint32_t constant32(uint32_t code) {
  if (code <= 208) return static_cast<uint32_t>(integer(code));
  return code == 248 ? kInverse2Pi32 : std::bit_cast<uint32_t>(kFloats[code - 240]);
}
uint32_t constant16(uint32_t code) {
  if (code <= 208) return static_cast<uint32_t>(integer(code));
  return kHalves[code - 240];
}
uint64_t constant64(uint32_t code) {
  if (code <= 208) return static_cast<uint64_t>(int64_t{integer(code)});
  return code == 248 ? kInverse2Pi64
                     : std::bit_cast<uint64_t>(static_cast<double>(kFloats[code - 240]));
}

uint32_t Wave::read32(uint32_t code, uint32_t literal, char width) const {
  if (code < 128) return code == kNull ? 0 : s[code];
  if (code <= 208) return constant32(code);
  if (code >= 240 && code <= 248)
    return width == 'h' || width == 'i' ? constant16(code) : constant32(code);
  const Dispatch& d = *group->dispatch;
  switch (code) {
    // The apertures' upper halves; as 32-bit operands they are what LLVM reads as a pointer's top.
    case 235: return static_cast<uint32_t>(d.shared_aperture >> 32);
    case 236: return static_cast<uint32_t>((d.shared_aperture | 0xffffffffu) >> 32);
    case 237: return static_cast<uint32_t>(d.private_aperture >> 32);
    case 238: return static_cast<uint32_t>((d.private_aperture | 0xffffffffu) >> 32);
    case 251: return read_mask(kVccLo) == 0;
    case 252: return exec() == 0;
    case 253: return scc;
    case kLiteral: return literal;
    default: return 0;
  }
}

uint64_t Wave::read64(uint32_t code, uint32_t literal, bool sign) const {
  if (code < 127) return code == kNull ? 0 : uint64_t{s[code + 1]} << 32 | s[code];
  if (code >= 128 && code <= 248 && (code <= 208 || code >= 240)) return constant64(code);
  const Dispatch& d = *group->dispatch;
  switch (code) {
    case 235: return d.shared_aperture;
    case 236: return d.shared_aperture | 0xffffffffu;
    case 237: return d.private_aperture;
    case 238: return d.private_aperture | 0xffffffffu;
    case kLiteral:
      return sign ? static_cast<uint64_t>(int64_t{static_cast<int32_t>(literal)}) : literal;
    default: return read32(code, literal, '2');
  }
}

}  // namespace bm::sim::amd
