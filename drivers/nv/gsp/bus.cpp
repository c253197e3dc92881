#include "drivers/nv/gsp/bus.h"

#include <algorithm>

#include "drivers/transport/pci_config.h"

namespace bm::nv::gsp {
namespace {

constexpr uint32_t kBarRegisters = 0;
constexpr uint64_t kLeastRegisterBytes = 16 << 20;

constexpr StageTerms kTerms[] = {
    {"P1 take", "somebody gave us the function", "BAR 0 is mapped, memory decoding is on"},
    {"P2 bus", "BAR 0 is mapped", "the card answers"},
    {"P3 identify", "the card answers", "chip and generation are known"},
    {"P4 stale state", "the generation is known",
     "no protected memory is left from a GSP that ran before"},
    {"P5 ROM", "the card is not in reset", "the program in its ROM is through"},
    {"P6 memory size", "the ROM has set the memory up", "size and what firmware keeps at its end"},
    {"P7 firmware", "the chip is known", "every file it wants is loaded and parsed"},
    {"P8 protected memory", "files and memory size are known",
     "the layout is made; FWSEC has set FRTS up where the boot has it, else the FMC is ready"},
    {"P9 arguments", "the layout is made",
     "queues, page lists and arguments lie where the card reaches them"},
    {"P10 GSP", "arguments are ready", "booter or FSP have started the GSP's processor"},
    {"P11 resource manager", "the GSP's processor runs", "the resource manager says it is ready"},
};

}  // namespace

std::span<const StageTerms> boot_terms() { return kTerms; }

Status Bus::open() {
  const PciBar& bar = pci_.bars()[kBarRegisters];
  if (bar.size < kLeastRegisterBytes)
    return fail(Code::kUnsupported,
                "BAR 0 has {:#x} bytes, and an NVIDIA GPU of Turing or later has {:#x}", bar.size,
                kLeastRegisterBytes);
  ++counts_.configuration;
  BM_TRY(set_memory_decoding(pci_, true));
  registers_ = BM_TRY(pci_.map_bar(kBarRegisters));
  return {};
}

uint32_t Bus::probe(const Register& from) {
  if (!status()) return UINT32_MAX;
  ++counts_.register_reads;
  const uint32_t value = registers_.read32(from.offset);
  return is_dead(value) ? UINT32_MAX : value;
}

uint32_t Bus::read(const Register& from) { return probe(from); }

void Bus::write(const Register& to, uint32_t value) {
  if (!status()) return;
  ++counts_.register_writes;
  registers_.write32(to.offset, value);
}

void Bus::update(const Register& which, uint32_t mask, uint32_t value) {
  const uint32_t seen = read(which);
  write(which, (seen & ~mask) | (value & mask));
}

void Bus::write_port(const Register& to, std::span<const uint32_t> words) {
  for (const uint32_t word : words) write(to, word);
}

void Bus::read_block(uint32_t offset, std::span<uint32_t> to) {
  if (!status()) {
    std::ranges::fill(to, UINT32_MAX);
    return;
  }
  ++counts_.register_reads;
  registers_.read_block(offset, to);
}

Status Bus::wait_for(const Register& which, uint32_t mask, uint32_t value, uint64_t timeout_us,
                     std::string_view what) {
  uint32_t seen = 0;
  const uint64_t begun = clock_.now_us();
  const bool came = BM_TRY(poll(timeout_us, [&] {
    seen = probe(which);
    return (seen & mask) == value;
  }));
  if (came) return {};
  return late(what, which.name, seen, {}, mask, value, clock_.now_us() - begun);
}

}  // namespace bm::nv::gsp
