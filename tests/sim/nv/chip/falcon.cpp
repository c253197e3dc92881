#include "tests/sim/nv/chip/falcon.h"

#include <algorithm>
#include <cstring>

#include <fmt/format.h>

#include "tests/sim/nv/bytes.h"

namespace bm::sim::nv::card {
namespace {
constexpr uint32_t kDmemBytes = 0x10000;
constexpr uint32_t kScrubReads = 2;  ///< how often the scrub is seen running
}  // namespace

Falcon::Falcon(std::string name, uint32_t base, const CardRow& row, RegisterFile& registers,
               Memory& memory)
    : name_(std::move(name)),
      base_(base),
      row_(row),
      registers_(registers),
      memory_(memory),
      dmem_(kDmemBytes) {
  declare();
  declare_memories();
  declare_boot_rom();
}

void Falcon::complain(const std::string& what) {
  registers_.violations().add(fmt::format("{}: {}", name_, what));
}

void Falcon::power_on() {
  is_in_reset_ = was_reset_ = saw_scrub_end_ = false;
  is_riscv_active = false;
  scrub_left_ = dma_busy_ = 0;
  core_ = Core::kFalcon;
  is_halted_ = true;
  mailbox[0] = mailbox[1] = os = interrupts = interrupt_mask = 0;
  transfer_config_ = {};
  fbif_control_ = 0;
  dma_control_ = 1;
  for (Block& block : imem_) block = {};
  std::ranges::fill(dmem_, std::byte{0});
}

void Falcon::reset(bool is_asserted) {
  if (is_asserted) {
    power_on();
    is_in_reset_ = true;
    return;
  }
  if (!is_in_reset_) return;
  is_in_reset_ = false;
  was_reset_ = true;
  scrub_left_ = kScrubReads;
  if (on_reset) on_reset();
}

bool Falcon::may_work(const char* what) {
  if (is_in_reset_ || !was_reset_)
    complain(fmt::format("{} {}", what, is_in_reset_ ? "while in reset" : "before a reset"));
  else if (!saw_scrub_end_)
    complain(fmt::format("{} before the scrub of its memories has ended", what));
  else if (core_ != Core::kFalcon)
    complain(fmt::format("{} while the RISC-V core is selected", what));
  else
    return true;
  return false;
}

void Falcon::declare() {
  const bool has_dma = row_.boot != BootPath::kFalconLoader;
  const auto at = [&](uint32_t offset, const char* name, Behavior behavior) {
    // A core that is locked down answers for nothing but HWCFG2 and the mailboxes.
    if (behavior.read)
      behavior.read = [this, plain = std::move(behavior.read)] {
        const uint32_t refusal = locked ? locked() : 0;
        return refusal != 0 ? refusal : plain();
      };
    registers_.declare(base_ + offset, name_ + "_FALCON_" + name, "dev_falcon_v4.h",
                       std::move(behavior));
  };
  at(0x004, "IRQSCLR",
     {.read = [] { return 0u; }, .write = [this](uint32_t v) { interrupts &= ~v; }});
  at(0x008, "IRQSTAT", {.read = [this] { return interrupts; }, .is_read_only = true});
  at(0x010, "IRQMSET",
     {.read = [] { return 0u; }, .write = [this](uint32_t v) { interrupt_mask |= v; }});
  at(0x014, "IRQMCLR",
     {.read = [] { return 0u; }, .write = [this](uint32_t v) { interrupt_mask &= ~v; }});
  at(0x018, "IRQMASK", {.read = [this] { return interrupt_mask; }, .is_read_only = true});
  at(0x01c, "IRQDEST", {});
  for (uint32_t i = 0; i < 2; ++i)
    at(0x040 + 4 * i, i == 0 ? "MAILBOX0" : "MAILBOX1",
       {.read = [this, i] { return mailbox[i]; },
        .write = [this, i](uint32_t v) { mailbox[i] = v; }});
  at(0x080, "OS", {.read = [this] { return os; }, .write = [this](uint32_t v) { os = v; }});
  at(0x084, "RM", {});
  at(0x094, "DEBUGINFO", {});
  at(0x0f4, "HWCFG2",
     {.read =
          [this] {
            // RISCV, and from GA102 on RESET_READY and MEM_SCRUBBING.
            uint32_t value = 1u << 10;
            if (row_.boot != BootPath::kFalconLoader) {
              value |= 1u << 31;
              if (!is_in_reset_ && scrub_left_ > 0) {
                --scrub_left_;
                value |= 1u << 12;
              } else if (!is_in_reset_ && was_reset_) {
                saw_scrub_end_ = true;
              }
            }
            return value | (hwcfg2_bits ? hwcfg2_bits() : 0);
          },
      .is_read_only = true});
  const auto cpu_control = [this](uint32_t v) {
    if ((v & 2) != 0) start();
  };
  at(0x100, "CPUCTL",
     {.read =
          [this] {
            const bool was_halted = is_halted_;
            is_halted_ = is_halted_ || is_ready_to_halt_;
            return was_halted ? 1u << 4 : 0u;
          },
      .write = cpu_control});
  at(0x130, "CPUCTL_ALIAS", {.read = [] { return 0u; }, .write = cpu_control});
  at(0x104, "BOOTVEC",
     {.read = [this] { return boot_vector_; }, .write = [this](uint32_t v) { boot_vector_ = v; }});
  at(0x108, "HWCFG", {.read = [] { return kBlocks; }, .is_read_only = true});
  // CORE_REV 6, SECURITY_MODEL heavy, a port each, tags of 16 bits: the INIT values of its header.
  at(0x12c, "HWCFG1", {.read = [] { return 0x0210'1136u; }, .is_read_only = true});
  at(0x048, "ITFEN", {});
  at(0x10c, "DMACTL",
     {.read =
          [this, has_dma] {
            // Turing and GA100 tell the scrub here.
            uint32_t value = dma_control_;
            if (!has_dma && !is_in_reset_) {
              if (scrub_left_ > 0) {
                --scrub_left_;
                value |= 6;
              } else if (was_reset_) {
                saw_scrub_end_ = true;
              }
            }
            return value;
          },
      .write = [this](uint32_t v) { dma_control_ = v & 1; }});
  registers_.declare(base_ + 0x3c0, name_ + "_FALCON_ENGINE", "dev_gsp.h, dev_sec_pri.h",
                     {.read = [this] { return is_in_reset_ ? 1u : 0u; },
                      .write = [this](uint32_t v) { reset((v & 1) != 0); }});

  const auto base_write = [this](uint32_t shift, uint32_t v) {
    if (dma_busy_ > 0) complain("DMATRFBASE written while a transfer runs");
    const uint64_t mask = uint64_t{shift == 0 ? UINT32_MAX : 0x1ffu} << shift;
    dma_base_ = (dma_base_ & ~mask) | (uint64_t{v} << shift & mask);
  };
  at(0x110, "DMATRFBASE",
     {.read = [this] { return static_cast<uint32_t>(dma_base_); },
      .write = [base_write](uint32_t v) { base_write(0, v); }});
  at(0x128, "DMATRFBASE1",
     {.read = [this] { return static_cast<uint32_t>(dma_base_ >> 32); },
      .write = [base_write](uint32_t v) { base_write(32, v); }});
  at(0x114, "DMATRFMOFFS",
     {.read = [this] { return dma_memory_; }, .write = [this](uint32_t v) { dma_memory_ = v; }});
  at(0x11c, "DMATRFFBOFFS",
     {.read = [this] { return dma_offset_; }, .write = [this](uint32_t v) { dma_offset_ = v; }});
  at(0x118, "DMATRFCMD",
     {.read =
          [this] {
            if (dma_busy_ == 0) return 2u;  // IDLE
            --dma_busy_;
            return 0u;
          },
      .write = [this](uint32_t v) { transfer(v); }});

  for (uint32_t i = 0; i < 8; ++i)
    registers_.declare(base_ + 0x600 + 4 * i, fmt::format("{}_FBIF_TRANSCFG({})", name_, i),
                       "dev_fbif_v4.h",
                       {.read = [this, i] { return transfer_config_[i]; },
                        .write = [this, i](uint32_t v) { transfer_config_[i] = v; }});
  registers_.declare(base_ + 0x624, name_ + "_FBIF_CTL", "dev_fbif_v4.h",
                     {.read = [this] { return fbif_control_; },
                      .write = [this](uint32_t v) { fbif_control_ = v; }});
}

void Falcon::declare_memories() {
  const auto at = [&](uint32_t offset, const char* name, Behavior behavior) {
    registers_.declare(base_ + offset, name_ + "_FALCON_" + name, "dev_falcon_v4.h",
                       std::move(behavior));
  };
  // OFFS 7:2, BLK 15:8, AINCW 24, AINCR 25, SECURE 28.
  at(0x180, "IMEMC(0)",
     {.read = [this] { return imem_control_; },
      .write =
          [this](uint32_t v) {
            imem_control_ = v;
            is_tagged_ = false;
          }});
  at(0x188, "IMEMT(0)",
     {.read = [] { return 0u; },
      .write =
          [this](uint32_t v) {
            const uint32_t address = imem_control_ & 0xfffc;
            if (!may_work("a tag for IMEM")) return;
            if (address % kBlock != 0 || address / kBlock >= kBlocks)
              return complain(
                  fmt::format("IMEM tag at {:#x}, which is no block's beginning", address));
            imem_[address / kBlock].tag = v & 0xffff;
            is_tagged_ = true;
          }});
  at(0x184, "IMEMD(0)",
     {.read = [] { return 0u; },
      .write =
          [this](uint32_t v) {
            const uint32_t address = imem_control_ & 0xfffc;
            if (!may_work("a load into IMEM")) return;
            if (address / kBlock >= kBlocks)
              return complain(fmt::format("IMEM ends before {:#x}", address));
            if (!is_tagged_)
              return complain(
                  address % kBlock == 0
                      ? fmt::format("IMEM block at {:#x} without a tag", address)
                      : fmt::format("IMEM load from {:#x}, which is no block's beginning",
                                    address));
            Block& block = imem_[address / kBlock];
            std::memcpy(&block.bytes[address % kBlock], &v, 4);
            block.is_loaded = true;
            block.is_secure = (imem_control_ >> 28 & 1) != 0;
            if ((imem_control_ >> 24 & 1) != 0) imem_control_ += 4;
            if (imem_control_ % kBlock == 0) is_tagged_ = false;
          }});
  at(0x1c0, "DMEMC(0)",
     {.read = [this] { return dmem_control_; },
      .write = [this](uint32_t v) { dmem_control_ = v; }});
  at(0x1c4, "DMEMD(0)",
     {.read =
          [this] {
            const uint32_t address = dmem_control_ & 0xfffc;
            if ((dmem_control_ >> 25 & 1) != 0) dmem_control_ += 4;
            return get<uint32_t>(dmem_, address);
          },
      .write =
          [this](uint32_t v) {
            if (!may_work("a load into DMEM")) return;
            put<uint32_t>(dmem_, dmem_control_ & 0xfffc, v);
            if ((dmem_control_ >> 24 & 1) != 0) dmem_control_ += 4;
          }});
}

void Falcon::declare_boot_rom() {
  const auto at = [&](uint32_t offset, const char* name, const char* source, Behavior behavior) {
    registers_.declare(base_ + 0x1000 + offset, name_ + name, source, std::move(behavior));
  };
  if (row_.boot == BootPath::kFalconLoader) {
    at(0x240, "_RISCV_CORE_SWITCH_RISCV_STATUS", "turing/tu102/dev_riscv_pri.h",
       {.read = [this] { return is_riscv_active ? 1u : 0u; }, .is_read_only = true});
    at(0x2b4, "_RISCV_IRQMASK", "turing/tu102/dev_riscv_pri.h",
       {.read = [this] { return interrupt_mask; }, .is_read_only = true});
    at(0x2b8, "_RISCV_IRQDEST", "turing/tu102/dev_riscv_pri.h", {});
    return;
  }
  const char* const kRiscv = "ampere/ga102/dev_riscv_pri.h";
  const char* const kSecond = "ampere/ga102/dev_falcon_second_pri.h";
  at(0x388, "_RISCV_CPUCTL", kRiscv,
     {.read =
          [this] {
            const uint32_t refusal = locked ? locked() : 0;
            return refusal != 0 ? refusal : is_riscv_active ? 1u << 7 : 1u << 4;
          },
      .is_read_only = true});
  at(0x528, "_RISCV_IRQMASK", kRiscv,
     {.read = [this] { return interrupt_mask; }, .is_read_only = true});
  at(0x52c, "_RISCV_IRQDEST", kRiscv, {});
  at(0x668, "_RISCV_BCR_CTRL", kRiscv,
     {.read =
          [this] {
            const uint32_t value = (core_ == Core::kRiscv ? 1u << 4 : 0u) |
                                   (core_ == Core::kSwitching ? 0u : 1u) | 1u << 8;
            if (core_ == Core::kSwitching) core_ = Core::kFalcon;
            return value;
          },
      .write =
          [this](uint32_t v) {
            const bool is_riscv = (v >> 4 & 1) != 0;
            if (is_in_reset_ || !was_reset_ || !saw_scrub_end_)
              complain("a core is selected before reset and scrub have ended");
            // nouveau selects before it resets (gm200_flcn_disable()), and cards bear it.
            if (is_riscv_active) return;
            core_ = is_riscv ? Core::kRiscv : Core::kSwitching;
          }});
  if (row_.boot != BootPath::kFalconDma) return;
  at(0x180, "_MOD_SEL", kSecond,
     {.read = [this] { return brom_algorithm_; },
      .write = [this](uint32_t v) { brom_algorithm_ = v & 0xff; }});
  at(0x198, "_BROM_CURR_UCODE_ID", kSecond,
     {.read = [this] { return brom_ucode_; },
      .write = [this](uint32_t v) { brom_ucode_ = v & 0xff; }});
  at(0x19c, "_BROM_ENGIDMASK", kSecond,
     {.read = [this] { return brom_engine_; }, .write = [this](uint32_t v) { brom_engine_ = v; }});
  at(0x210, "_BROM_PARAADDR(0)", kSecond,
     {.read = [this] { return brom_address_; },
      .write = [this](uint32_t v) { brom_address_ = v; }});
}

void Falcon::transfer(uint32_t command) {
  // SEC 3:2, IMEM 4, WRITE 5, SIZE 10:8, CTXDMA 14:12.
  if (!may_work("DMA")) return;
  const bool is_imem = bits(command, 4, 4) != 0;
  const uint32_t context = bits(command, 14, 12);
  if (bits(command, 5, 5) != 0) return complain("DMA out of the falcon's memories");
  if (bits(command, 10, 8) != 6) return complain("DMA in another size than 256 bytes");
  if (dma_busy_ > 0) return complain("DMA command while the request queue is full");
  if (dma_memory_ % kBlock != 0 || dma_offset_ % kBlock != 0)
    return complain(fmt::format("DMA from offset {:#x} to {:#x}: no multiples of 256", dma_offset_,
                                dma_memory_));
  if ((fbif_control_ & 0x80) == 0 || (dma_control_ & 1) != 0)
    return complain("DMA without FBIF_CTL_ALLOW_PHYS_NO_CTX, or with REQUIRE_CTX");
  const uint32_t config = transfer_config_[context];
  if ((config & 4) == 0)
    return complain(fmt::format("DMA through FBIF_TRANSCFG({}), which is not physical", context));
  // Addresses wrap: memory offsets are subtracted from the base before.
  const uint64_t address = ((dma_base_ << 8) + dma_offset_) & 0x1'ffff'ffff'ffff;
  std::array<std::byte, kBlock> bytes{};
  if (!memory_.read((config & 3) == 0 ? Aperture::kVideo : Aperture::kSystem, address, bytes,
                    name_ + " DMA"))
    return;
  if (is_imem) {
    if (dma_memory_ / kBlock >= kBlocks)
      return complain(fmt::format("IMEM ends before {:#x}", dma_memory_));
    imem_[dma_memory_ / kBlock] = {bytes, dma_offset_ >> 8, true, bits(command, 3, 2) != 0};
  } else {
    if (dma_memory_ + kBlock > dmem_.size())
      return complain(fmt::format("DMEM ends before {:#x}", dma_memory_));
    std::memcpy(&dmem_[dma_memory_], bytes.data(), kBlock);
  }
  dma_busy_ = 1;
}

bool Falcon::check_code(const HsProgram& program, uint32_t first_block, const Blob& code,
                        uint32_t tag, bool is_secure, std::string* why) const {
  for (uint32_t at = 0; at < code.size(); at += kBlock) {
    const uint32_t index = first_block + at / kBlock;
    if (index >= kBlocks || !imem_[index].is_loaded) {
      *why = fmt::format("IMEM block {} of {} was not loaded", index, program.name);
      return false;
    }
    const Block& block = imem_[index];
    const size_t bytes = std::min<size_t>(kBlock, code.size() - at);
    const auto [loaded, wanted] =
        std::mismatch(block.bytes.begin(), block.bytes.begin() + static_cast<ptrdiff_t>(bytes),
                      code.begin() + at);
    if (loaded != block.bytes.begin() + static_cast<ptrdiff_t>(bytes)) {
      *why = fmt::format("code differs from {} at {:#x}", program.name,
                         at + (loaded - block.bytes.begin()));
      return false;
    }
    if (block.tag != (tag >> 8) + at / kBlock) {
      *why = fmt::format("IMEM block {} of {} has tag {:#x}, not {:#x}", index, program.name,
                         block.tag, (tag >> 8) + at / kBlock);
      return false;
    }
    if (block.is_secure != is_secure) {
      *why = fmt::format("IMEM block {} of {} is {}loaded as secure", index, program.name,
                         is_secure ? "not " : "");
      return false;
    }
  }
  return true;
}

bool Falcon::check_data(const HsProgram& program, std::span<const std::byte> data,
                        std::string* why) const {
  const uint32_t slot = program.signature_at, end = slot + program.signature_bytes;
  const HsProgram& p = program;
  // FWSEC is told what to do in its data: init_cmd and the command's buffer.
  const uint32_t input = p.mapper_at == 0 ? 0 : get<uint32_t>(p.data, p.mapper_at + 8);
  const uint32_t input_bytes = p.mapper_at == 0 ? 0 : get<uint32_t>(p.data, p.mapper_at + 12);
  for (uint32_t i = 0; i < p.data.size(); ++i) {
    if (i >= slot && i < end) continue;
    if (p.mapper_at != 0 && ((i >= input && i < input + input_bytes) || i - (p.mapper_at + 44) < 4))
      continue;
    if (i < data.size() && data[i] == p.data[i]) continue;
    *why = fmt::format("data differs from {} at {:#x}", p.name, i);
    return false;
  }
  if (p.signature_bytes == 0) return true;
  const Blob* const wanted = p.signature_for(kFuse);
  const auto there = data.subspan(slot, p.signature_bytes);
  if (wanted != nullptr && std::ranges::equal(there, *wanted)) return true;
  *why = std::ranges::equal(there, std::span(p.data).subspan(slot, p.signature_bytes))
             ? fmt::format("the slot of {}'s signature was not filled", p.name)
             : fmt::format("{}'s signature is not that of fuse version {}", p.name, kFuse);
  return false;
}

bool Falcon::check_boot_rom(const HsProgram& p, std::string* why) const {
  const struct {
    const char* name;
    uint32_t is, wanted;
  } all[] = {{"BROM_PARAADDR", brom_address_, p.signature_at},
             {"BROM_ENGIDMASK", brom_engine_, p.engine_mask},
             {"BROM_CURR_UCODE_ID", brom_ucode_, p.ucode_id},
             {"MOD_SEL", brom_algorithm_, 1}};
  for (const auto& one : all)
    if (one.is != one.wanted) {
      *why = fmt::format("{} is {:#x}, {}'s descriptor says {:#x}", one.name, one.is, p.name,
                         one.wanted);
      return false;
    }
  return true;
}

void Falcon::halt(bool is_done) {
  is_halted_ = false;
  is_ready_to_halt_ = is_done;
}

void Falcon::start() {
  if (!may_work("a start")) return;
  if (dma_busy_ > 0) return complain("a start while a transfer runs");
  is_ready_to_halt_ = is_halted_ = false;
  if (row_.boot == BootPath::kFalconDma)
    start_by_dma();
  else if (loader != nullptr && boot_vector_ == loader->start_tag << 8)
    start_loader();
  else
    start_by_pio();
}

void Falcon::start_by_dma() {
  std::string first;
  for (const HsProgram* const p : programs) {
    std::string why;
    const bool is_code = check_code(*p, 0, p->code, p->code_virtual, true, &why);
    if (!is_code) {
      if (first.empty()) first = why;
      // What another program differs in from its first byte on is not that program.
      if (!why.ends_with(" at 0x0")) first = why;
      continue;
    }
    if (boot_vector_ != p->code_virtual)
      return complain(fmt::format("boot vector {:#x}, {} begins at {:#x}", boot_vector_, p->name,
                                  p->code_virtual));
    if (!check_boot_rom(*p, &why) || !check_data(*p, dmem_, &why)) return complain(why);
    return halt(run(*p, dmem_));
  }
  complain(programs.empty() ? "started without the file of any program" : first);
}

void Falcon::start_by_pio() {
  std::string first;
  for (const HsProgram* const p : programs) {
    if (p->kind == HsProgram::Kind::kFwsec) continue;  // by the loader
    std::string why;
    const auto front = static_cast<uint32_t>((p->front.size() + kBlock - 1) / kBlock);
    if (!check_code(*p, 0, p->front, 0, false, &why) ||
        !check_code(*p, front, p->code, p->code_virtual, true, &why)) {
      if (first.empty() || !why.ends_with(" at 0x0")) first = why;
      continue;
    }
    if (boot_vector_ != 0)
      return complain(fmt::format("boot vector {:#x}, {} begins at 0", boot_vector_, p->name));
    if (!check_data(*p, dmem_, &why)) return complain(why);
    return halt(run(*p, dmem_));
  }
  complain(programs.empty() ? "started without the file of any program" : first);
}

// RM_FLCN_BL_DMEM_DESC (K arch/nvalloc/common/inc/rmflcnbl.h), which the generic boot loader
// takes from DMEM 0.
void Falcon::start_loader() {
  HsProgram as_program;
  as_program.name = "gen_bootloader";
  std::string why;
  const auto blocks = static_cast<uint32_t>((loader->code.size() + kBlock - 1) / kBlock);
  if (!check_code(as_program, kBlocks - blocks, loader->code, loader->start_tag << 8, false, &why))
    return complain(why);
  const HsProgram* program = nullptr;
  for (const HsProgram* const p : programs)
    if (p->kind == HsProgram::Kind::kFwsec) program = p;
  if (program == nullptr) return complain("the boot loader has nothing to load");
  const auto word = [&](uint32_t index) {
    return get<uint32_t>(dmem_, loader->descriptor_at + 4 * index);
  };
  // reserved[4] signature[4] ctxDma codeDmaBase[2] nonSecureCodeOff, Size secureCodeOff, Size
  // codeEntryPoint dataDmaBase[2] dataSize argc argv
  const uint32_t context = word(8);
  const auto front = static_cast<uint32_t>(program->front.size());
  const auto secure = static_cast<uint32_t>((program->code.size() + 255) / 256 * 256);
  const struct {
    const char* name;
    uint32_t is, wanted;
  } all[] = {{"ctxDma", context, 4},
             {"nonSecureCodeOff", word(11), 0},
             {"nonSecureCodeSize", word(12), front},
             {"secureCodeOff", word(13), program->code_virtual},
             {"secureCodeSize", word(14), secure},
             {"codeEntryPoint", word(15), 0},
             {"dataSize", word(18), static_cast<uint32_t>(program->data.size())}};
  for (const auto& one : all)
    if (one.is != one.wanted)
      return complain(fmt::format("the boot loader's {} is {:#x}, {}'s descriptor says {:#x}",
                                  one.name, one.is, program->name, one.wanted));
  if ((transfer_config_[context] & 7) != 5 || (fbif_control_ & 0x80) == 0 ||
      (dma_control_ & 1) != 0)
    return complain("the boot loader's FBIF_TRANSCFG(4) is not coherent physical system memory");
  const uint64_t code_at = word(9) | uint64_t{word(10)} << 32;
  const uint64_t data_at = word(16) | uint64_t{word(17)} << 32;
  Blob code(front + program->code.size()), data(program->data.size());
  if (!memory_.read(Aperture::kSystem, code_at, code, name_ + " boot loader") ||
      !memory_.read(Aperture::kSystem, data_at, data, name_ + " boot loader"))
    return;
  Blob wanted = program->front;
  wanted.insert(wanted.end(), program->code.begin(), program->code.end());
  const auto differs = std::mismatch(code.begin(), code.end(), wanted.begin()).first;
  if (differs != code.end())
    return complain(
        fmt::format("code differs from {} at {:#x}", program->name, differs - code.begin()));
  if (!check_data(*program, data, &why)) return complain(why);
  halt(run(*program, data));
}

}  // namespace bm::sim::nv::card
