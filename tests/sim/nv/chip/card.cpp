#include "tests/sim/nv/chip/card.h"

#include <algorithm>
#include <bit>
#include <chrono>
#include <cstring>
#include <utility>

#include <fmt/format.h>

#include "tests/sim/notify/give_up.h"
#include "tests/sim/nv/chip/kernel_registers.h"

namespace bm::sim::nv::card {
namespace {

// K dev_ram.h NV_PRAMIN, dev_ext_devices.h NV_PROM_DATA, dev_vm.h
// NV_VIRTUAL_FUNCTION_FULL_PHYS_OFFSET with the user's page at 0x30000.
constexpr uint32_t kPramin = 0x700000, kPraminBytes = 0x100000, kProm = 0x300000,
                   kPromBytes = 0x100000, kUser = 0xbb0000, kUserBytes = 0x10000;
constexpr uint32_t kSequencerScratch = 0x1400 + 4 * 0x30;  ///< NV_PBUS_SW_SCRATCH
constexpr uint32_t kDoorbell = 0x90, kTime0 = 0x80, kTime1 = 0x84;

uint64_t ones(uint32_t width) { return width == 8 ? UINT64_MAX : (uint64_t{1} << width * 8) - 1; }

const CardRow& row_of(const std::string& name) {
  const CardRow* const row = find_card_row(name);
  if (row == nullptr) sim::give_up("no card " + name + " is modelled");
  return *row;
}

template <class T>
std::optional<T> open_file(const FirmwareFiles& files, const char* name, Violations& violations,
                           auto read) {
  const auto at = files.files.find(name);
  if (at == files.files.end()) return std::nullopt;
  std::string why;
  std::optional<T> out = read(at->second, &why);
  if (!out) violations.add(fmt::format("the file {} of this run: {}", name, why));
  return out;
}

CardFirmware open_firmware(const CardRow& row, const FirmwareFiles& files, const Vbios& vbios,
                           Violations& violations) {
  using Kind = HsProgram::Kind;
  const auto hs = [&](const char* name, Kind kind) {
    return open_file<HsProgram>(
        files, name, violations,
        [kind](const Blob& file, std::string* why) { return read_hs(kind, file, why); });
  };
  CardFirmware out;
  out.fwsec = vbios.fwsec;
  out.booter_load = hs("booter_load", Kind::kBooterLoad);
  out.booter_unload = hs("booter_unload", Kind::kBooterUnload);
  out.scrubber = hs("scrubber", Kind::kScrubber);
  out.loader = open_file<LoaderImage>(files, "gen_bootloader", violations, read_loader);
  out.bootloader = open_file<RiscvImage>(files, "bootloader", violations, read_riscv);
  out.fmc = open_file<FmcImage>(files, "fmc", violations, read_fmc);
  out.gsp = open_file<GspImage>(
      files, "gsp", violations,
      [&row](const Blob& file, std::string* why) { return read_gsp(file, row.signature, why); });
  return out;
}

}  // namespace

Card::Card(CardOptions options)
    : options_(std::move(options)),
      row_(row_of(options_.chip)),
      traits_{.bars = {{kRegisterBar, 0xf000'0000, false, false},
                       {kMemoryBar, 0x60'0000'0000, true, true},
                       {kInstanceBar, 0x70'0000'0000, true, true}},
              .memory_bar = kMemoryBar,
              .register_bar = kRegisterBar,
              .largest_memory_bar = options_.vram_bytes,
              .has_iommu = options_.has_iommu,
              .has_function_reset = options_.has_function_reset,
              .reserved = options_.reserved,
              .physical_base = options_.physical_base},
      video_(options_.vram_bytes),
      config_({.vendor = 0x10de,
               .device = row_.device,
               .subsystem_vendor = 0x10de,
               .subsystem_device = 0x1467,
               .revision = 0xa1,
               .bars = {BarLayout{kRegisterBytes, false, false},
                        BarLayout{options_.bar1_bytes, true, true}, BarLayout{},
                        BarLayout{kInstanceBytes, true, true}, BarLayout{}, BarLayout{}},
               .resizable_bar = kMemoryBar,
               .largest_bar = options_.vram_bytes,
               .has_function_reset = options_.has_function_reset,
               // As `lspci -vv` shows GeForce cards.
               .capabilities = {.power = 0x60, .express = 0x78, .msi = 0x68}}),
      registers_(violations_),
      memory_(video_, bus_memory_, config_, kMemoryBar, violations_),
      vbios_(make_vbios(row_)),
      firmware_(open_firmware(row_, options_.firmware, vbios_, violations_)),
      gsp_(std::make_unique<Falcon>("NV_PGSP", 0x110000, row_, registers_, memory_)),
      sec2_(row_.boot == BootPath::kFsp
                ? nullptr
                : std::make_unique<Falcon>("NV_PSEC", 0x840000, row_, registers_, memory_)),
      boot_(row_, firmware_, registers_, memory_, *gsp_, sec2_.get()),
      queues_(row_, registers_, memory_, *gsp_),
      mmu_(row_, registers_, memory_),
      rm_(row_, registers_, memory_, mmu_, queues_) {
  const auto is_protected = [this](uint64_t offset, uint64_t bytes) {
    return boot_.is_protected(offset, bytes);
  };
  mmu_.is_protected = is_protected;
  rm_.is_protected = is_protected;
  boot_.needs_scrub = options_.needs_scrub;
  boot_.start_gsp = [this](uint64_t arguments) { return queues_.start(arguments); };
  boot_.is_gsp_running = [this] { return queues_.is_running(); };
  queues_.handle = [this](uint32_t function, std::span<const std::byte> payload) {
    return rm_.handle(function, payload);
  };
  queues_.on_system_info = [this](std::span<const std::byte> info) { rm_.set_system_info(info); };
  queues_.on_message = [this] { interrupt(); };
  queues_.on_ready = [this] { starts_.push_back(violations_.all().size()); };
  queues_.sequencer = [this] { return sequencer_program(); };
  boot_.on_resume = [this] { resume(); };
  queues_.on_unload = [this] {
    rm_.stop();
    queues_.stop();
    gsp_->mailbox[0] = 0x8000'0000;  // LIBOS_INTERRUPT_PROCESSOR_SUSPENDED
    // "Wait for GSP to halt to allow ACR and GSP FMC to finish shutdown" (kgspTeardown_GH100).
    if (row_.boot == BootPath::kFsp) boot_.release();
  };
  declare();
  declare_kernel_registers(registers_);
  // ROM shadow control (nouveau's nvkm_pci_rom_shadow()), MSI rearm (nv40_pci_msi_rearm()).
  config_.put(0x50, 4, 0, 1);
  config_.put(0x704, 1, 0);
  power_on();
}

Card::~Card() { on_interrupt({}); }

void Card::declare() {
  const auto constant = [&](uint32_t address, const char* name, const char* source,
                            uint32_t value) {
    registers_.declare(address, name, source, {.reset = value, .is_read_only = true});
  };
  constant(0x0, "NV_PMC_BOOT_0", "nv_ref.h", row_.boot0);
  constant(0xa00, "NV_PMC_BOOT_42", "nv_ref.h", row_.boot42);
  // Where writes of the GPU to system memory are flushed to: the low word, and the high one.
  const auto flush = [&](uint32_t low, uint32_t high, const char* source) {
    registers_.declare(low, "sysmem flush address, low", source);
    registers_.declare(high, "sysmem flush address, high", source);
  };
  if (row_.boot != BootPath::kFsp) {
    flush(0x100c10, 0x100c40, "turing/tu102/dev_fb.h");
    const bool is_turing = row_.name.starts_with("tu");
    constant(is_turing ? 0x21c04 : 0x820c04, "NV_FUSE_STATUS_OPT_DISPLAY", "dev_fuse.h",
             options_.has_display ? 0 : 1);
    if (is_turing)
      constant(0x21c00, "fuse of copy engines", "nouveau gm107_devinit_disable(): none is off", 0);
    if (row_.name == "ga100") {
      // The range is empty.
      const char* const fb = "ampere/ga100/dev_fb.h";
      constant(0x1fa7c8, "NV_PFB_PRI_MMU_LOCK_CFG_PRIV_LEVEL_MASK", fb, 0xffff'ffff);
      constant(0x1fa82c, "NV_PFB_PRI_MMU_LOCK_ADDR_LO", fb, 0x1fff'fff0);
      constant(0x1fa830, "NV_PFB_PRI_MMU_LOCK_ADDR_HI", fb, 0);
    }
    // NV_PSEC_SCP_CTL_STAT: DEBUG_MODE 20:20 is clear on what is sold.
    constant(0x840408, "NV_PSEC_SCP_CTL_STAT", "turing/tu102/dev_sec_pri.h", 0);
    constant(0x625f04, "NV_PDISP_VGA_WORKSPACE_BASE", "volta/gv100/dev_disp.h", 0);
  } else if (row_.name == "gh100") {
    flush(0x100a34, 0x100a38, "hopper/gh100/dev_fb.h");
  } else if (row_.name == "gb100") {
    flush(0x8706c0, 0x8706c4, "blackwell/gb100/dev_hshub_base.h");
    flush(0x870e50, 0x870e54, "blackwell/gb100/dev_hshub_base.h");
  } else {
    flush(0x8a1d58, 0x8a1d5c, "blackwell/gb202/dev_fbhub.h");
  }
  const char* const gc6 = "ampere/ga102/dev_gc6_island.h";
  const auto mib = static_cast<uint32_t>(options_.vram_bytes >> 20);
  switch (row_.memory_size) {
    case MemorySize::kLocalRange: {
      // LOWER_MAG 9:4 << (LOWER_SCALE 3:0 + 20).
      const uint32_t width = std::bit_width(mib), scale = width > 6 ? width - 6 : 0;
      constant(0x100ce0, "NV_PFB_PRI_MMU_LOCAL_MEMORY_RANGE", "pascal/gp102/dev_fb.h",
               (mib >> scale) << 4 | scale);
      break;
    }
    case MemorySize::kScratch42:
      constant(0x1183a4, "NV_PGC6_AON_SECURE_SCRATCH_GROUP_42", gc6, mib);
      break;
  }
  if (row_.i2cs_scratch != 0) {
    registers_.declare(row_.i2cs_scratch, "NV_THERM_I2CS_SCRATCH", "dev_therm.h",
                       {.read = [this] { return boot_.read_i2cs(); }, .is_read_only = true});
  } else {
    constant(0x118128, "NV_PGC6_AON_SECURE_SCRATCH_GROUP_05_PRIV_LEVEL_MASK", gc6, 0xffff'ffff);
    registers_.declare(0x118234, "NV_PGC6_AON_SECURE_SCRATCH_GROUP_05(0)", gc6,
                       {.read = [this] { return boot_.read_scratch05(); }, .is_read_only = true});
  }
  if (row_.boot == BootPath::kFalconDma) {
    const char* const fuse = "ampere/ga100/dev_fuse.h";
    for (uint32_t i = 0; i < 16; ++i) {
      registers_.declare(0x824140 + 4 * i,
                         fmt::format("NV_FUSE_OPT_FPF_SEC2_UCODE{}_VERSION", i + 1), fuse,
                         {.reset = (1u << kFuse) - 1, .is_read_only = true});
      registers_.declare(0x8241c0 + 4 * i,
                         fmt::format("NV_FUSE_OPT_FPF_GSP_UCODE{}_VERSION", i + 1), fuse,
                         {.reset = (1u << kFuse) - 1, .is_read_only = true});
    }
    constant(0x82074c, "NV_FUSE_OPT_SECURE_GSP_DEBUG_DIS", fuse, 1);
  }
  const char* const kBus = "turing/tu102/dev_bus.h";
  registers_.declare(
      row_.bar0_window, "NV_PBUS_BAR0_WINDOW",
      "maxwell/gm107/dev_bus.h, hopper/gh100/pri_nv_xal_ep.h",
      {.read = [this] { return static_cast<uint32_t>(window_ >> 16); },
       .write =
           [this](uint32_t v) {
             // BASE 23:0 in units of 64 KiB, TARGET 25:24 (0 is video memory).
             if (row_.bar0_window == 0x1700 && (v >> 24 & 3) != 0)
               violations_.add(fmt::format("PRAMIN's window {:#x} is not of video memory", v));
             window_ = uint64_t{v & 0xffffff} << 16;
           }});
  const auto bar1 = [this](uint32_t mode_bit) {
    return Behavior{.read = [this] { return bar1_block_; },
                    .write =
                        [this, mode_bit](uint32_t v) {
                          bar1_block_ = v;
                          if ((v >> mode_bit & 1) != 0)
                            violations_.add(fmt::format("BAR 1 in virtual mode: block {:#x}", v));
                        }};
  };
  registers_.declare(kSequencerScratch, "NV_PBUS_SW_SCRATCH(0x30)", kBus);
  registers_.declare(0x1704, "NV_PBUS_BAR1_BLOCK", kBus, bar1(31));
  if (row_.mmu == MmuVersion::k3) {
    registers_.declare(0xb80f60, "NV_VIRTUAL_FUNCTION_PRIV_FUNC_BAR1_BLOCK_LOW_ADDR",
                       "hopper/gh100/dev_vm.h", bar1(9));
    registers_.declare(0xb80f64, "NV_VIRTUAL_FUNCTION_PRIV_FUNC_BAR1_BLOCK_HIGH_ADDR",
                       "hopper/gh100/dev_vm.h", {});
  }
  // Time: NV_PTIMER_TIME_0, _1 (volta/gv100/dev_timer.h).
  const auto now = [] {
    return static_cast<uint64_t>(std::chrono::steady_clock::now().time_since_epoch().count());
  };
  // Kernel drivers set them to the time of the host, which changes nothing here.
  registers_.declare(
      0x9400, "NV_PTIMER_TIME_0", "dev_timer.h",
      {.read = [now] { return static_cast<uint32_t>(now()) & ~0x1fu; }, .write = [](uint32_t) {}});
  registers_.declare(
      0x9410, "NV_PTIMER_TIME_1", "dev_timer.h",
      {.read = [now] { return static_cast<uint32_t>(now() >> 32); }, .write = [](uint32_t) {}});
  registers_.declare(
      kUser + kTime0, "NV_VIRTUAL_FUNCTION_TIME_0", "turing/tu102/dev_vm.h",
      {.read = [this] { return static_cast<uint32_t>(rm_.engines().tick()) & ~0x1fu; },
       .is_read_only = true});
  registers_.declare(kUser + kTime1, "NV_VIRTUAL_FUNCTION_TIME_1", "turing/tu102/dev_vm.h",
                     {.read = [this] { return static_cast<uint32_t>(rm_.engines().tick() >> 32); },
                      .is_read_only = true});
  registers_.declare(kUser + kDoorbell, "NV_VIRTUAL_FUNCTION_DOORBELL", "turing/tu102/dev_vm.h",
                     {.read = [] { return 0u; },
                      .write =
                          [this](uint32_t v) {
                            ++counts_.doorbells;
                            rm_.engines().usermode()->write(kDoorbell, &v, sizeof v);
                          }});
  // CPU interrupt tree of the physical function: leaves, enables, the top (dev_vm.h, 0x1000 …).
  for (uint32_t i = 0; i < 16; ++i) {
    const char* const vm = "turing/tu102/dev_vm.h";
    registers_.declare(0xb81000 + 4 * i, fmt::format("CPU_INTR_LEAF({})", i), vm,
                       {.read = [] { return 0u; }, .write = [](uint32_t) {}});
    registers_.declare(0xb81200 + 4 * i, fmt::format("CPU_INTR_LEAF_EN_SET({})", i), vm);
    registers_.declare(0xb81400 + 4 * i, fmt::format("CPU_INTR_LEAF_EN_CLEAR({})", i), vm);
  }
  constant(0xb81600, "CPU_INTR_TOP(0)", "turing/tu102/dev_vm.h", 0);
  registers_.declare(0xb81608, "CPU_INTR_TOP_EN_SET(0)", "turing/tu102/dev_vm.h");
  registers_.declare(0xb81610, "CPU_INTR_TOP_EN_CLEAR(0)", "turing/tu102/dev_vm.h");
}

// rpc_run_cpu_sequencer_v17_00: size, words used, save area of 8, commands as K
// arch/nvalloc/common/inc/rmgspseq.h has them.
std::vector<std::byte> Card::sequencer_program() {
  if (row_.boot == BootPath::kFsp || !options_.runs_sequencer) return {};
  const uint32_t program[] = {4,    0x0,
                              0,  // store NV_PMC_BOOT_0
                              0,    kSequencerScratch,
                              0xff,  // write
                              2,    kSequencerScratch,
                              0xff, 0xff,
                              1000, 1,  // poll: mask, value
                              1,    kSequencerScratch,
                              0xf0, 0x50,  // modify: mask, value
                              3,    1,     // delay
                              5,    8};    // core reset, resume
  constexpr uint32_t kCount = std::size(program);
  std::vector<std::byte> out(40 + kCount * 4);
  const uint32_t head[] = {kCount, kCount};
  std::memcpy(out.data(), head, sizeof head);
  std::memcpy(&out[40], program, sizeof program);
  boot_.awaits_resume = true;
  return out;
}

void Card::resume() {
  constexpr uint32_t kWanted = 0x5f;
  if (const uint32_t is = registers_.read(kSequencerScratch); is != kWanted)
    violations_.add(fmt::format("CPU sequencer: {} is {:#x}, not {:#x}",
                                registers_.name_of(kSequencerScratch), is, kWanted));
  queues_.finish_start();
}

void Card::power_on() {
  registers_.reset();
  gsp_->power_on();
  if (sec2_ != nullptr) sec2_->power_on();
  rm_.stop();
  queues_.stop();
  boot_.power_on();
  mmu_.power_on();
  video_.lose();
  window_ = 0;
  bar1_block_ = 0;
}

void Card::function_reset() {
  const std::lock_guard lock(mutex_);
  std::array<uint64_t, 6> bars{};
  for (const CardBar& bar : traits_.bars) bars[bar.index] = config_.bar_address(bar.index);
  const uint64_t memory = config_.bar_bytes(kMemoryBar);
  config_.power_on();
  // Whoever resets restores them: the kernel, or the server for its client.
  config_.resize_bar(memory);
  for (const CardBar& bar : traits_.bars) config_.set_bar_address(bar.index, bars[bar.index]);
  config_.set_command(true, false);
  power_on();
}

uint64_t Card::bar_bytes(uint32_t bar) const {
  switch (bar) {
    case kRegisterBar: return kRegisterBytes;
    case kMemoryBar: return config_.bar_bytes(kMemoryBar);
    case kInstanceBar: return kInstanceBytes;
    default: return 0;
  }
}

bool Card::check_bar(const char* what, uint32_t bar, uint64_t offset, uint64_t bytes) {
  if (is_unplugged_) return false;
  if (!config_.decodes_memory() || offset > bar_bytes(bar) || bytes > bar_bytes(bar) - offset) {
    violations_.add(fmt::format("{} of BAR {} at {:#x} is not decoded", what, bar, offset));
    return false;
  }
  if (bar == kMemoryBar && boot_.is_protected(offset, bytes)) {
    violations_.add(
        fmt::format("{} of BAR 1 at {:#x}, in the write-protected region", what, offset));
    return false;
  }
  return true;
}

bool Card::is_config(uint32_t address) const {
  return address >= row_.config_mirror && address - row_.config_mirror < ConfigSpace::kSize;
}

/// BAR 3 of the function, which NVIDIA calls BAR 2: through page tables whose top GSP-RM keeps.
/// Until then physical, and drivers read it to flush what they have written.
bool Card::move_instance(uint64_t offset, std::span<std::byte> bytes, bool is_write) {
  const std::lock_guard lock(mutex_);
  if (rm_.bar2_space == nullptr) {
    if (is_write) {
      violations_.add(fmt::format("write of BAR 3 at {:#x}: nothing is bound to it", offset));
      return false;
    }
    video_.host_read(offset, bytes);
    return true;
  }
  const auto walk = rm_.bar2_space->walk();
  uint64_t base = 0;
  uint32_t fault = 0;
  const PageRange* const page = walk->find(offset, &base, &fault);
  if (page == nullptr || offset + bytes.size() > base + page->size) {
    violations_.add(
        fmt::format("{} of BAR 3 at {:#x}: no page", is_write ? "write" : "read", offset));
    return false;
  }
  const uint64_t at = page->offset + (offset - base);
  if (page->backing == mmu_.video()) {
    is_write ? video_.host_write(at, bytes) : video_.host_read(at, bytes);
    return true;
  }
  return is_write ? page->backing->write(at, bytes.data(), bytes.size())
                  : page->backing->read(at, bytes.data(), bytes.size());
}

uint32_t Card::read_register(uint32_t address) {
  ++counts_.register_reads;
  if (row_.boot != BootPath::kFsp && address - kProm < kPromBytes) {
    uint32_t word = 0;
    std::memcpy(&word, &vbios_.rom[address - kProm], 4);
    return word;
  }
  uint32_t word = 0;
  if (address - kPramin < kPraminBytes) {
    const uint64_t at = window_ + address - kPramin;
    if (boot_.is_protected(at, 4))
      violations_.add(fmt::format("read of PRAMIN at {:#x}, in the write-protected region", at));
    else
      video_.host_read(at, std::as_writable_bytes(std::span(&word, 1)));
    return word;
  }
  if (is_config(address)) return config_.read(address - row_.config_mirror, 4);
  return registers_.read(address);
}

void Card::write_register(uint32_t address, uint32_t value) {
  ++counts_.register_writes;
  if (address - kPramin < kPraminBytes) {
    const uint64_t at = window_ + address - kPramin;
    if (boot_.is_protected(at, 4))
      violations_.add(fmt::format("write of PRAMIN at {:#x}, in the write-protected region", at));
    else
      video_.host_write(at, std::as_bytes(std::span(&value, 1)));
    return;
  }
  if (is_config(address)) {
    config_.write(address - row_.config_mirror, 4, value);
    return;
  }
  registers_.write(address, value);
}

uint64_t Card::read(uint32_t bar, uint64_t offset, uint32_t width) {
  if (!check_bar("read", bar, offset, width)) return ones(width);
  if (bar == kInstanceBar) {
    uint64_t value = 0;
    const auto bytes = std::as_writable_bytes(std::span(&value, 1)).first(width);
    return move_instance(offset, bytes, false) ? value : ones(width);
  }
  if (bar == kMemoryBar) {
    ++counts_.memory_reads;
    counts_.memory_read_bytes += width;
    uint64_t value = 0;
    video_.host_read(offset, std::as_writable_bytes(std::span(&value, 1)).first(width));
    return value;
  }
  if (is_config(static_cast<uint32_t>(offset)) && width < 4) {
    const std::lock_guard lock(mutex_);
    return config_.read(static_cast<uint32_t>(offset) - row_.config_mirror, width);
  }
  if (width != 4 || offset % 4 != 0) {
    violations_.add(fmt::format("read of {} bytes of registers at {:#x}", width, offset));
    return ones(width);
  }
  const std::lock_guard lock(mutex_);
  return read_register(static_cast<uint32_t>(offset));
}

void Card::before_unmap(uint64_t address, uint64_t bytes) {
  const std::lock_guard lock(mutex_);
  if (!is_unplugged_ && config_.is_bus_master()) rm_.before_unmap(address, bytes);
}

void Card::write(uint32_t bar, uint64_t offset, uint32_t width, uint64_t value) {
  if (!check_bar("write", bar, offset, width)) return;
  if (bar == kInstanceBar) {
    move_instance(offset, std::as_writable_bytes(std::span(&value, 1)).first(width), true);
    return;
  }
  if (bar == kMemoryBar) {
    ++counts_.memory_writes;
    counts_.memory_written_bytes += width;
    video_.host_write(offset, std::as_bytes(std::span(&value, 1)).first(width));
    return;
  }
  if (is_config(static_cast<uint32_t>(offset)) && width < 4) {
    const std::lock_guard lock(mutex_);
    config_.write(static_cast<uint32_t>(offset) - row_.config_mirror, width,
                  static_cast<uint32_t>(value));
    return;
  }
  if (width != 4 || offset % 4 != 0) {
    violations_.add(fmt::format("write of {} bytes of registers at {:#x}", width, offset));
    return;
  }
  const std::lock_guard lock(mutex_);
  write_register(static_cast<uint32_t>(offset), static_cast<uint32_t>(value));
}

void Card::read_block(uint32_t bar, uint64_t offset, std::span<std::byte> to) {
  if (!check_bar("read", bar, offset, to.size())) {
    std::ranges::fill(to, std::byte{0xff});
    return;
  }
  if (bar == kMemoryBar) {
    ++counts_.memory_reads;
    counts_.memory_read_bytes += to.size();
    video_.host_read(offset, to);
    return;
  }
  for (size_t i = 0; i + 4 <= to.size(); i += 4) {
    const auto word = static_cast<uint32_t>(read(bar, offset + i, 4));
    std::memcpy(&to[i], &word, 4);
  }
}

void Card::write_block(uint32_t bar, uint64_t offset, std::span<const std::byte> from) {
  if (!check_bar("write", bar, offset, from.size())) return;
  if (bar == kMemoryBar) {
    ++counts_.memory_writes;
    counts_.memory_written_bytes += from.size();
    video_.host_write(offset, from);
    return;
  }
  for (size_t i = 0; i + 4 <= from.size(); i += 4) {
    uint32_t word = 0;
    std::memcpy(&word, &from[i], 4);
    write(bar, offset + i, 4, word);
  }
}

uint32_t Card::read_config(uint32_t offset, uint32_t width) {
  ++counts_.config;
  if (is_unplugged_) return static_cast<uint32_t>(ones(width));
  const std::lock_guard lock(mutex_);
  return config_.read(offset, width);
}

void Card::write_config(uint32_t offset, uint32_t width, uint32_t value) {
  ++counts_.config;
  if (is_unplugged_) return;
  ConfigSpace::Effect effect;
  {
    const std::lock_guard lock(mutex_);
    effect = config_.write(offset, width, value);
    has_msi_ = config_.has_msi() && config_.is_bus_master();
  }
  if (effect != ConfigSpace::Effect::kFunctionReset) return;
  function_reset();
  // Started by the function's own bit: whoever wrote it turns decoding on again.
  const std::lock_guard lock(mutex_);
  config_.set_command(false, false);
}

bool Card::resize_memory_bar(uint64_t bytes) {
  const std::lock_guard lock(mutex_);
  return config_.resize_bar(bytes);
}

void Card::on_interrupt(std::function<void()> send) {
  const std::lock_guard lock(interrupt_mutex_);
  send_interrupt_ = std::move(send);
}

void Card::set_msi(bool on) {
  const std::lock_guard lock(mutex_);
  config_.set_msi(on);
  has_msi_ = on;
}

void Card::interrupt() {
  const std::lock_guard lock(interrupt_mutex_);
  if (has_msi_ && send_interrupt_) send_interrupt_();
}

}  // namespace bm::sim::nv::card
