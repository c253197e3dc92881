#include "drivers/nv/gsp/card.h"

#include <algorithm>
#include <array>
#include <cstring>

#include "drivers/nv/abi/gsp.h"
#include "drivers/nv/gsp/fsp.h"
#include "drivers/nv/gsp/sequencer.h"
#include "drivers/transport/pci_config.h"
#include "firmware/nvidia/radix3.h"
#include "runtime/base/bits.h"
#include "runtime/base/log.h"

namespace bm::nv::gsp {
namespace {

using firmware::nvidia::FwsecCommand;
using firmware::nvidia::Kind;

constexpr uint16_t kNvidia = 0x10de;
constexpr uint32_t kDisplayClass = 0x03;
// What a unit that does not answer reads as: 0xbadf in the high half, the cause below. 0xbadf41xx:
// it answers to another processor alone.
constexpr uint32_t kNoAnswer = 0xbadf, kTargetLocked = 0xbadf4100;
constexpr uint32_t kRomThrough = 0xff;

// TIMEOUT: a reset function answers again within 100 ms (PCI Express); five seconds for slow
// boards.
constexpr uint64_t kBackUs = 5'000'000;
// TIMEOUT: the ROM's program takes up to 4 s after power-on (GetGFWBootTimeoutMs in
// kern_fsp_gh100.c; nova-core waits 4 s, for the FSP 5 s); ten cover a busy machine.
constexpr uint64_t kRomUs = 10'000'000;
// TIMEOUT: registers behind the ROM's program may not answer before it has come to them.
constexpr uint64_t kReadableUs = 5'000'000;
// TIMEOUT: a live FSP takes a message in milliseconds; what a second sees in its queue is stuck.
constexpr uint64_t kFspTakesUs = 1'000'000;
// TIMEOUT: FWSEC and the scrubber end in milliseconds; nouveau and nova-core wait 2 s.
constexpr uint64_t kFwsecUs = 5'000'000;
// TIMEOUT: the booter fetches and checks 64 MiB; nouveau and nova-core wait 2 s.
constexpr uint64_t kBooterUs = 20'000'000;
// TIMEOUT: nova-core waits 5 s for the core, 30 s for the end of the FMC's lockdown.
constexpr uint64_t kActiveUs = 5'000'000, kLockdownUs = 30'000'000;
// TIMEOUT: the kernel's module waits 4 s for the queue, nova-core 10 s for GSP_INIT_DONE.
constexpr uint64_t kLinkUs = 10'000'000, kInitUs = 30'000'000;
// TIMEOUT: nouveau waits 2 s for the processor's suspension and 4 to 8 s for its halt.
constexpr uint64_t kSuspendUs = 10'000'000;

constexpr uint32_t kSuspended = 0x80000000;  // LIBOS_INTERRUPT_PROCESSOR_SUSPENDED
constexpr uint32_t kScrubbed = 3;            // BSI_SECURE_SCRATCH_15 31:29
constexpr uint32_t kUnloadMailbox = 0xff;    // told to booter_unload: no data for a resume
constexpr uint32_t kFalconLoaderContext = 4;

// rmflcnbl.h, RM_FLCN_BL_DMEM_DESC: what gen_bootloader finds in data memory.
struct LoaderDescriptor {
  uint32_t reserved[4] = {}, signature[4] = {};
  uint32_t context = kFalconLoaderContext;
  uint32_t code_low = 0, code_high = 0;
  uint32_t code_at = 0, code_bytes = 0, secure_at = 0, secure_bytes = 0, entry = 0;
  uint32_t data_low = 0, data_high = 0, data_bytes = 0;
  uint32_t argc = 0, argv = 0;
};
static_assert(sizeof(LoaderDescriptor) == 84);

bool is_silent(uint32_t value) { return value >> 16 == kNoAnswer; }

Status no_file(Kind kind) {
  return fail(Code::kUnsupported, "the chip's set of files has no {}",
              firmware::nvidia::kind_name(kind));
}

}  // namespace

Result<CardFacts> identify(Bus& bus) {
  CardFacts facts;
  facts.boot0 = bus.read(reg::kBoot0);
  facts.boot42 = bus.read(reg::kBoot42);
  BM_TRY(bus.status());
  facts.architecture = facts.boot42 >> 24 & 0x3f;
  facts.implementation = facts.boot42 >> 20 & 0xf;
  facts.generation = BM_TRY(find_generation(facts.architecture, facts.implementation));
  facts.chip = BM_TRY(firmware::nvidia::chip_name(facts.architecture, facts.implementation));
  return facts;
}

bool is_rom_done(Bus& bus, const Generation& generation) {
  switch (generation.rom_done) {
    case RomDone::kSecureScratch:
      // Before the mask opens the register behind it does not answer.
      return (bus.probe(reg::kScratch05Mask) & 1) != 0 &&
             (bus.probe(reg::kScratch05) & 0xff) == kRomThrough;
    case RomDone::kThermScratch:
      return (bus.probe({"THERM_I2CS_SCRATCH", generation.therm_scratch}) & 0xffff00ff) ==
             kRomThrough;
  }
  __builtin_unreachable();
}

Result<uint64_t> read_memory_bytes(Bus& bus, const Generation& generation) {
  uint64_t bytes = 0;
  uint32_t seen = 0;
  switch (generation.memory_size) {
    case MemorySize::kLocalRange:
      seen = bus.read(reg::kLocalMemoryRange);
      bytes = (uint64_t{seen >> 4 & 0x3f} << (seen & 0xf)) * kMiB;
      if ((seen >> 30 & 1) != 0) bytes = bytes / 16 * 15;  // the rest holds ECC
      break;
    case MemorySize::kScratch42:
      seen = bus.read(reg::kScratch42);
      bytes = uint64_t{seen} * kMiB;
      break;
  }
  BM_TRY(bus.status());
  constexpr uint64_t kLeast = 1024 * kMiB, kMost = uint64_t{4} << 40;
  if (is_silent(seen) || bytes < kLeast || bytes > kMost)
    return fail(Code::kCorrupt, "the card says its memory size is {:#x}: {} MiB", seen,
                bytes / kMiB);
  return bytes;
}

uint64_t protected_memory_end(Bus& bus) { return uint64_t{bus.read(reg::kWpr2High) >> 4} << 12; }

Result<std::unique_ptr<GspCard>> GspCard::open(std::unique_ptr<PciFunction> function,
                                               const Options& options) {
  Clock& clock = options.clock != nullptr ? *options.clock : real_clock();
  std::unique_ptr<GspCard> card(new GspCard(std::move(function), options, clock));
  if (Status booted = card->boot(); !booted) {
    // An FSP that was spoken to keeps half a message, or takes no second start: no register tells.
    if (card->has_asked_fsp_ && booted.error().code != Code::kDeviceLost) {
      if (Status reset = card->reset_function(); !reset)
        log("nv", LogLevel::kWarning, "after the failed boot: {}", reset.error().message);
    }
    // A card half up must not write to memory that is about to be freed.
    static_cast<void>(set_bus_master(*card->function_, false));
    card->has_left_ = true;
    log("nv", LogLevel::kInfo, "boot of {}:\n{}", to_string(card->function_->identity().address),
        card->bus_.stages.table());
    return tl::unexpected(std::move(booted.error()));
  }
  log("nv", LogLevel::kInfo, "booted {}", to_string(card->function_->identity().address));
  return card;
}

Status GspCard::boot() {
  static constexpr Step kSteps[] = {{"P1 take", &GspCard::take},
                                    {"P2 bus", &GspCard::check_bus},
                                    {"P3 identify", &GspCard::identify_card},
                                    {"P4 stale state", &GspCard::clear_stale},
                                    {"P5 ROM", &GspCard::wait_rom},
                                    {"P6 memory size", &GspCard::read_memory},
                                    {"P7 firmware", &GspCard::load_files},
                                    {"P8 protected memory", &GspCard::prepare_protected},
                                    {"P9 arguments", &GspCard::make_boot_arguments},
                                    {"P10 GSP", &GspCard::start_gsp},
                                    {"P11 resource manager", &GspCard::start_resource_manager}};
  for (const Step& step : kSteps) BM_TRY(bus_.run(step.name, [&] { return (this->*step.work)(); }));
  is_up_ = true;
  return {};
}

// P1. The transport has seen to it that no driver has the function, and its group with it.
Status GspCard::take() {
  const PciIdentity& id = function_->identity();
  if (id.vendor != kNvidia || id.class_code >> 16 != kDisplayClass)
    return fail(Code::kUnsupported, "{:04x}:{:04x} of class {:#x} is no GPU of NVIDIA's", id.vendor,
                id.device, id.class_code);
  BM_TRY(bus_.open());
  bus_.stages.note(fmt::format("{:04x}:{:04x}", id.vendor, id.device));
  return {};
}

// P2.
Status GspCard::check_bus() {
  const uint32_t boot0 = bus_.read(reg::kBoot0);
  BM_TRY(bus_.status());
  if (boot0 == UINT32_MAX || boot0 == 0 || is_silent(boot0))
    return fail(Code::kDeviceLost, "{} reads {:#x}: the card does not decode its registers",
                reg::kBoot0.name, boot0);
  bus_.stages.note(fmt::format("{} {:#x}", reg::kBoot0.name, boot0));
  return {};
}

// P3.
Status GspCard::identify_card() {
  facts_ = BM_TRY(identify(bus_));
  bus_.stages.note(fmt::format("{} ({})", facts_.chip, facts_.generation->family));
  gsp_.emplace(bus_, *facts_.generation, reg::kGspFalcon, "the GSP");
  sec2_.emplace(bus_, *facts_.generation, reg::kSec2Falcon, "SEC2");
  return {};
}

// P4. A process that was killed leaves a GSP that runs: only a reset takes its memory back.
Status GspCard::clear_stale() {
  uint32_t high = 0;
  if (!BM_TRY(bus_.poll(kReadableUs, [&] {
        high = bus_.probe(reg::kWpr2High);
        return !is_silent(high);
      })))
    return fail(Code::kTimeout, "{} does not answer: {:#x}", reg::kWpr2High.name, high);
  if (high >> 4 == 0) {
    bus_.stages.note("none");
    return {};
  }
  const uint64_t end = uint64_t{high >> 4} << 12;
  BM_TRY(reset_function());
  was_reset_ = true;
  bus_.stages.note(fmt::format("protected memory up to {:#x} was left: reset", end));
  return {};
}

Status GspCard::reset_function() {
  BM_TRY(set_bus_master(*function_, false));
  Status done = function_->reset(PciReset::kFunction);
  if (!done && done.error().code == Code::kUnsupported) done = function_->reset(PciReset::kBus);
  if (!done)
    return fail(
        done.error().code,
        "an earlier start has left its state in the card, which cannot be reset ({}): switch "
        "the machine off and on",
        done.error().message);
  BM_TRY(set_memory_decoding(*function_, true));
  uint32_t boot0 = 0;
  if (!BM_TRY(bus_.poll(kBackUs, [&] {
        boot0 = bus_.probe(reg::kBoot0);
        return boot0 == facts_.boot0;
      })))
    return fail(Code::kTimeout, "{} ms after its reset the card gives {:#x} for {}", kBackUs / 1000,
                boot0, reg::kBoot0.name);
  uint32_t high = 0;
  if (!BM_TRY(bus_.poll(kReadableUs, [&] {
        high = bus_.probe(reg::kWpr2High);
        return high >> 4 == 0;
      })))
    return fail(Code::kIo,
                "protected memory has survived the reset ({} {:#x}): switch the machine off and on",
                reg::kWpr2High.name, high);
  return {};
}

// P5.
Status GspCard::wait_rom() {
  if (BM_TRY(bus_.poll(kRomUs, [&] { return is_rom_done(bus_, generation()); })))
    return clear_fsp_queue();
  const bool is_fsp = generation().rom_done == RomDone::kThermScratch;
  const Register progress =
      is_fsp ? Register{"THERM_I2CS_SCRATCH", generation().therm_scratch} : reg::kScratch05;
  return fail(
      Code::kTimeout,
      "the program in the card's ROM is not through after {} ms: {} is {:#x}, wanted {:#x}; "
      "no power on an auxiliary plug, or a damaged ROM",
      kRomUs / 1000, progress.name, bus_.probe(progress), kRomThrough);
}

/// Half a message of a process that was killed meanwhile; the FSP takes whole ones at once.
Status GspCard::clear_fsp_queue() {
  if (generation().path != BootPath::kFsp || was_reset_) return {};
  if (BM_TRY(bus_.poll(kFspTakesUs, [&] {
        return bus_.read(reg::kFspQueueHead) == bus_.read(reg::kFspQueueTail);
      })))
    return {};
  BM_TRY(reset_function());
  was_reset_ = true;
  bus_.stages.note("half a message to the FSP was left: reset");
  return wait_rom();
}

// P6.
Status GspCard::read_memory() {
  video_bytes_ = BM_TRY(read_memory_bytes(bus_, generation()));
  bus_.stages.note(fmt::format("{} MiB", video_bytes_ / kMiB));
  return {};
}

// P7.
Status GspCard::load_files() {
  const auto set = BM_TRY(firmware::nvidia::firmware_set(facts_.chip));
  files_.reserve(set.files.size());
  for (const auto& wanted : set.files) {
    files_.push_back(BM_TRY(firmware::load(wanted.name, options_.firmware)));
    const firmware::Image file(files_.back().path, files_.back().bytes);
    BM_TRY(firmware::nvidia::check_file(wanted.kind, set.family, file));
    if (files_.back().row == nullptr)
      log("nv", LogLevel::kWarning, "{}: a version that is not known", files_.back().path);
    switch (wanted.kind) {
      case Kind::kBooterLoad: booter_load_ = BM_TRY(firmware::nvidia::parse_hs_ucode(file)); break;
      case Kind::kBooterUnload:
        booter_unload_ = BM_TRY(firmware::nvidia::parse_hs_ucode(file));
        break;
      case Kind::kScrubber: scrubber_ = BM_TRY(firmware::nvidia::parse_hs_ucode(file)); break;
      case Kind::kFalconBootLoader:
        falcon_loader_ = BM_TRY(firmware::nvidia::parse_falcon_boot_loader(file));
        break;
      case Kind::kBootLoader: loader_ = BM_TRY(firmware::nvidia::parse_riscv_ucode(file)); break;
      case Kind::kFmc: fmc_ = BM_TRY(firmware::nvidia::parse_fmc_image(file)); break;
      case Kind::kGsp:
        image_ = BM_TRY(firmware::nvidia::parse_gsp_image(file));
        signature_ = BM_TRY(image_.signature_of(set.family));
        break;
    }
  }
  bus_.stages.note(fmt::format("{} files, {}", files_.size(), image_.version));
  return {};
}

Status GspCard::read_rom() {
  // Most ROMs end within the first half; what is read is a megabyte of registers.
  Status last;
  for (uint32_t bytes = reg::kRomBytes / 4; bytes <= reg::kRomBytes; bytes *= 2) {
    const size_t before = rom_bytes_.size();
    std::vector<uint32_t> words((bytes - before) / 4);
    bus_.read_block(reg::kRom + static_cast<uint32_t>(before), words);
    BM_TRY(bus_.status());
    rom_bytes_.resize(bytes);
    std::memcpy(rom_bytes_.data() + before, words.data(), words.size() * 4);
    auto rom = firmware::nvidia::parse_rom(firmware::Image("the card's ROM", rom_bytes_));
    if (rom) {
      rom_ = std::move(*rom);
      break;
    }
    last = tl::unexpected(std::move(rom.error()));
  }
  if (!rom_) return last;
  auto found = firmware::nvidia::find_fwsec(*rom_);
  // A start without FRTS has no use for it; only the end asks for it then.
  if (!found && generation().frts_bytes == 0) return {};
  fwsec_ = BM_TRY(std::move(found));
  return {};
}

/// Without it no falcon ends a reset: it writes there before it says so.
void GspCard::set_flush_page(uint64_t address) {
  const auto put = [&](const Register& high, const Register& low) {
    bus_.write(high, hi32(address));
    bus_.write(low, lo32(address));
  };
  switch (generation().flush_page) {
    case FlushPage::kNisoHigh:
      bus_.write(reg::kNisoFlushHigh, static_cast<uint32_t>(address >> 40));
      [[fallthrough]];
    case FlushPage::kNiso: bus_.write(reg::kNisoFlush, static_cast<uint32_t>(address >> 8)); return;
    case FlushPage::kFbhub: put(reg::kFbhubFlushHigh, reg::kFbhubFlush); return;
    case FlushPage::kHshub:
      put(reg::kHshubFlushHigh, reg::kHshubFlush);
      put(reg::kHshubEgFlushHigh, reg::kHshubEgFlush);
      return;
    case FlushPage::kFbhub0: put(reg::kFbhub0FlushHigh, reg::kFbhub0Flush); return;
  }
}

/// Where the display's memory at the end begins.
uint64_t GspCard::vga_workspace() {
  constexpr uint64_t kWindow = kMiB, kWorkspace = 128 << 10;
  constexpr uint32_t kIsValid = 1u << 3;
  const uint64_t without = video_bytes_ - kWindow;
  const Register fuse{"FUSE_STATUS_OPT_DISPLAY", generation().display_fuse};
  if ((bus_.read(fuse) & 1) != 0) return without;
  const uint32_t base = bus_.read(reg::kVgaWorkspace);
  if ((base & kIsValid) == 0) return without;
  const uint64_t at = uint64_t{base & 0xffffff00} << 8;
  return at < without ? video_bytes_ - kWorkspace : at;
}

// P8.
Status GspCard::prepare_protected() {
  memory_ = BM_TRY(BootMemory::create(*function_, generation().address_bits));
  flush_page_ = BM_TRY(memory_->allocate(kGspPage, true, "flush page"));
  BM_TRY(set_bus_master(*function_, true));
  set_flush_page(flush_page_.address());
  if (generation().path == BootPath::kFsp) {
    if (!fmc_) return no_file(Kind::kFmc);
    fmc_block_ = BM_TRY(memory_->place(fmc_->image, "FMC"));
    bus_.stages.note("by the FSP");
    return bus_.status();
  }
  BM_TRY(read_rom());
  const uint64_t vga = vga_workspace();
  BM_TRY(bus_.status());
  layout_ =
      BM_TRY(lay_out(generation(), video_bytes_, vga, image_.image.size(), loader_.image.size()));
  if (layout_->frts_at == layout_->end) {
    bus_.stages.note(fmt::format("{:#x} to {:#x}, no FRTS", layout_->start, layout_->end));
    return {};
  }
  BM_TRY(run_fwsec(FwsecCommand::kFrts));
  const uint32_t error = bus_.read(reg::kScratch.of(reg::kFrtsError)) >> 16;
  if (error != 0) return fail(Code::kIo, "FWSEC reports {:#x} for FRTS", error);
  const uint64_t low = uint64_t{bus_.read(reg::kWpr2Low) >> 4} << 12;
  const uint64_t high = protected_memory_end(bus_);
  BM_TRY(bus_.status());
  if (high == 0 || low != layout_->frts_at)
    return fail(Code::kIo, "FWSEC has set protected memory up from {:#x} to {:#x}, wanted {:#x}",
                low, high, layout_->frts_at);
  bus_.stages.note(
      fmt::format("{:#x} to {:#x}, FRTS at {:#x}", layout_->start, layout_->end, layout_->frts_at));
  return {};
}

Result<uint32_t> GspCard::read_fuse(uint32_t engine_mask, uint32_t ucode_id) {
  struct Row {
    uint32_t engine;
    const Register& fuse;
  };
  // Bits as ga100_flcn_fw_signature has them.
  static constexpr Row kRows[] = {
      {1u << 0, reg::kFuseSec2}, {1u << 2, reg::kFuseNvdec}, {1u << 10, reg::kFuseGsp}};
  if (ucode_id == 0 || ucode_id > 16)
    return fail(Code::kCorrupt, "a program with id {}, and fuses count from 1 to 16", ucode_id);
  for (const Row& row : kRows)
    if ((engine_mask & row.engine) != 0) {
      const uint32_t value = bus_.read(row.fuse.of(ucode_id - 1));
      BM_TRY(bus_.status());
      return value;
    }
  return fail(Code::kCorrupt, "a program for engines {:#x}, none of which has fuses", engine_mask);
}

Status GspCard::run_fwsec(FwsecCommand command) {
  const std::string_view what = command == FwsecCommand::kFrts ? "FWSEC (FRTS)" : "FWSEC (SB)";
  firmware::nvidia::FwsecRequest request{.command = command};
  if (command == FwsecCommand::kFrts) {
    request.frts_address = layout_->frts_at;
    request.frts_size = layout_->end - layout_->frts_at;
  }
  if (!fwsec_->signatures.empty())
    request.fuse_register = BM_TRY(read_fuse(fwsec_->engine_id_mask, fwsec_->ucode_id));
  const auto ready = BM_TRY(firmware::nvidia::prepare(*fwsec_, request));
  BM_TRY(gsp_->reset());
  switch (generation().path) {
    case BootPath::kBooterPio: return run_fwsec_pio(ready, what);
    case BootPath::kBooterDma: return run_fwsec_dma(ready, what);
    case BootPath::kFsp: break;
  }
  return fail(Code::kInternal, "{} on a card that has none", what);
}

/// gen_bootloader fetches FWSEC, and jumps to it.
Status GspCard::run_fwsec_pio(const firmware::nvidia::PreparedFwsec& ready, std::string_view what) {
  if (!falcon_loader_) return no_file(Kind::kFalconBootLoader);
  if (fwsec_->descriptor_version != 2)
    return fail(Code::kUnsupported, "{}: descriptor version {} on a {}", what,
                fwsec_->descriptor_version, facts_.chip);
  const BootBlock code = BM_TRY(memory_->place(ready.code, "FWSEC's code"));
  const BootBlock data = BM_TRY(memory_->place(ready.data, "FWSEC's data"));
  const LoaderDescriptor descriptor{.code_low = lo32(code.address()),
                                    .code_high = hi32(code.address()),
                                    .code_at = fwsec_->code_base,
                                    .code_bytes = fwsec_->secure.offset - fwsec_->code_base,
                                    .secure_at = fwsec_->secure.offset,
                                    .secure_bytes = fwsec_->secure.size,
                                    .data_low = lo32(data.address()),
                                    .data_high = hi32(data.address()),
                                    .data_bytes = static_cast<uint32_t>(fwsec_->data.size())};
  constexpr uint32_t kBlock = 256;
  const auto loader_bytes =
      static_cast<uint32_t>(align_up(falcon_loader_->code.size(), size_t{kBlock}));
  const uint32_t memory_bytes = gsp_->code_memory_bytes();
  BM_TRY(bus_.status());
  if (memory_bytes < loader_bytes)
    return fail(Code::kIo, "the GSP's falcon says it has {:#x} bytes for code", memory_bytes);
  const uint32_t entry = falcon_loader_->start_tag * kBlock;
  BM_TRY(gsp_->load(PioProgram{.code = falcon_loader_->code,
                               .code_at = memory_bytes - loader_bytes,
                               .code_virtual = entry,
                               .data = std::as_bytes(std::span(&descriptor, 1)),
                               .data_at = falcon_loader_->descriptor_at,
                               .entry = entry}));
  gsp_->allow_system_memory(kFalconLoaderContext);
  const Mailboxes seen = BM_TRY(gsp_->run(0, std::nullopt, kFwsecUs, what));
  if (seen.low != 0) return fail(Code::kIo, "{} ends with {:#x}", what, seen.low);
  return {};
}

Status GspCard::run_fwsec_dma(const firmware::nvidia::PreparedFwsec& ready, std::string_view what) {
  if (fwsec_->descriptor_version != 3)
    return fail(Code::kUnsupported, "{}: descriptor version {} on a {}", what,
                fwsec_->descriptor_version, facts_.chip);
  const BootBlock code = BM_TRY(memory_->place(ready.code, "FWSEC's code"));
  const BootBlock data = BM_TRY(memory_->place(ready.data, "FWSEC's data"));
  BM_TRY(gsp_->load(DmaProgram{.code_address = code.address(),
                               .code_bytes = static_cast<uint32_t>(ready.code.size()),
                               .code_at = fwsec_->code_base,
                               .code_virtual = fwsec_->code_virtual,
                               .data_address = data.address(),
                               .data_bytes = static_cast<uint32_t>(ready.data.size()),
                               .data_at = fwsec_->data_base,
                               .signature_in_data = fwsec_->signature_at,
                               .engine_mask = fwsec_->engine_id_mask,
                               .ucode_id = fwsec_->ucode_id}));
  const Mailboxes seen = BM_TRY(gsp_->run(0, std::nullopt, kFwsecUs, what));
  if (seen.low != 0) return fail(Code::kIo, "{} ends with {:#x}", what, seen.low);
  return {};
}

/// A signed program on SEC2: its mailboxes at the end.
Result<Mailboxes> GspCard::run_signed(const firmware::nvidia::HsUcode& ucode,
                                      std::optional<uint64_t> mailboxes, std::string_view what) {
  uint32_t fuse = 0;
  if (ucode.signatures.size() > 1) fuse = BM_TRY(read_fuse(ucode.engine_id_mask, ucode.ucode_id));
  const std::vector<std::byte> image = BM_TRY(firmware::nvidia::signed_image(ucode, fuse));
  if (ucode.apps.empty()) return fail(Code::kCorrupt, "{} has no program", ucode.name);
  const auto part = [&](const firmware::nvidia::Range& range) {
    return std::span(image).subspan(range.offset, range.size);
  };
  const firmware::nvidia::Range& app = ucode.apps.front().code;
  BootBlock block;  // until the program has ended
  BM_TRY(sec2_->reset());
  switch (generation().path) {
    case BootPath::kBooterPio:
      BM_TRY(sec2_->load(PioProgram{.code = part(ucode.os_code),
                                    .code_at = ucode.os_code.offset,
                                    .code_virtual = ucode.os_code.offset,
                                    .secure_code = part(app),
                                    .secure_at = app.offset,
                                    .data = part(ucode.os_data),
                                    .data_at = 0,
                                    .entry = ucode.os_code.offset}));
      break;
    case BootPath::kBooterDma:
      block = BM_TRY(memory_->place(image, what));
      BM_TRY(sec2_->load(DmaProgram{.code_address = block.address() + app.offset,
                                    .code_bytes = app.size,
                                    .code_at = 0,
                                    .code_virtual = app.offset,
                                    .data_address = block.address() + ucode.os_data.offset,
                                    .data_bytes = ucode.os_data.size,
                                    .data_at = 0,
                                    .signature_in_data = ucode.signature_in_data(),
                                    .engine_mask = ucode.engine_id_mask,
                                    .ucode_id = ucode.ucode_id}));
      break;
    case BootPath::kFsp: return fail(Code::kInternal, "{} on a card with an FSP", what);
  }
  std::optional<uint32_t> low, high;
  if (mailboxes) low = lo32(*mailboxes), high = hi32(*mailboxes);
  return sec2_->run(low, high, kBooterUs, what);
}

Status GspCard::place_image() {
  image_block_ = BM_TRY(memory_->allocate(image_.image.size(), false, "GSP image"));
  image_block_.view().copy_in(0, image_.image);
  const auto radix = BM_TRY(firmware::nvidia::size_radix3(image_.image.size()));
  image_table_ = BM_TRY(memory_->allocate(radix.table_pages() * kGspPage, true, "page lists"));
  std::vector<std::byte> tables(radix.table_pages() * kGspPage);
  std::vector<uint64_t> table_pages = image_table_.pages(), image_pages = image_block_.pages();
  table_pages.resize(radix.table_pages());
  image_pages.resize(radix.image_pages);
  BM_TRY(firmware::nvidia::write_radix3(radix, tables, table_pages, image_pages));
  image_table_.view().copy_in(0, tables);
  loader_block_ = BM_TRY(memory_->place(loader_.image, "RISC-V boot loader"));
  std::vector<std::byte> signature(signature_.begin(), signature_.end());
  signature.resize(align_up(signature.size(), size_t{256}));
  signature_block_ = BM_TRY(memory_->place(signature, "signature of the GSP image"));
  const ProtectedSources sources{.image_table = image_table_.address(),
                                 .image_bytes = image_.image.size(),
                                 .loader = loader_block_.address(),
                                 .loader_bytes = loader_.image.size(),
                                 .loader_code = loader_.monitor_code.offset,
                                 .loader_data = loader_.monitor_data.offset,
                                 .loader_manifest = loader_.manifest.offset,
                                 .signature = signature_block_.address(),
                                 .signature_bytes = signature.size()};
  const auto meta =
      layout_ ? encode_meta(*layout_, sources) : encode_meta(generation(), video_bytes_, sources);
  meta_ = BM_TRY(memory_->place(meta.bytes(), "WPR meta"));
  image_table_.view().publish();
  return {};
}

// P9.
Status GspCard::make_boot_arguments() {
  BM_TRY(place_image());
  queue_ = BM_TRY(MessageQueue::create(bus_, *memory_));
  arguments_ = BM_TRY(make_arguments(*memory_, *queue_));
  if (generation().path == BootPath::kFsp)
    arguments_.fmc =
        BM_TRY(memory_->place(encode_fmc_arguments(meta_.address(), abi::gsp::WprMeta::kBytes,
                                                   arguments_.regions.address()),
                              "FMC arguments"));
  const std::vector<std::byte> info = encode_system_info(generation(), *function_);
  BM_TRY(queue_->post({.what = "GSP_SET_SYSTEM_INFO",
                       .function = RpcFunction::kGspSetSystemInfo,
                       .payload = info}));
  const std::vector<std::byte> registry = encode_registry(registry_values());
  return queue_->post(
      {.what = "SET_REGISTRY", .function = RpcFunction::kSetRegistry, .payload = registry});
}

Status GspCard::scrub() {
  const auto is_done = [&] { return bus_.read(reg::kBsiScratch15) >> 29 >= kScrubbed; };
  if (!layout_->needs_scrubber(generation()) || is_done()) return bus_.status();
  if (!scrubber_) return no_file(Kind::kScrubber);
  BM_TRY(run_signed(*scrubber_, std::nullopt, "the scrubber"));
  if (is_done()) return bus_.status();
  return fail(Code::kIo, "the scrubber has ended, and {} is {:#x}", reg::kBsiScratch15.name,
              bus_.read(reg::kBsiScratch15));
}

Status GspCard::start_with_booter() {
  if (!booter_load_) return no_file(Kind::kBooterLoad);
  BM_TRY(gsp_->reset_into_riscv());
  gsp_->write_mailboxes(arguments_.regions.address());
  BM_TRY(scrub());
  const Mailboxes seen = BM_TRY(run_signed(*booter_load_, meta_.address(), "booter_load"));
  if (seen.low != 0)
    return fail(Code::kIo,
                "booter_load ends with {:#x}: a file of another chip, or one whose signature the "
                "board does not take",
                seen.low);
  return {};
}

Status GspCard::start_with_fsp() {
  const std::vector<std::byte> cot = BM_TRY(encode_cot(
      generation(), *fmc_, {.fmc = fmc_block_.address(), .arguments = arguments_.fmc.address()}));
  Fsp fsp(bus_);
  has_asked_fsp_ = true;
  BM_TRY(fsp.send(kNvdmCot, cot));
  const Register hwcfg2 = gsp_->reg(falcon_reg::kHwcfg2);
  uint32_t config = 0;
  Mailboxes boxes;
  const bool is_released = BM_TRY(bus_.poll(kLockdownUs, [&] {
    config = bus_.probe(hwcfg2);
    // Until the FMC is through its registers answer to the FSP alone.
    if (config == 0 || (config & 0xffffff00) == kTargetLocked) return false;
    boxes = gsp_->mailboxes();
    const uint64_t both = uint64_t{boxes.high} << 32 | boxes.low;
    if (boxes.low != 0) return both != arguments_.fmc.address();
    return (config & falcon_reg::kHwcfg2Lockdown) == 0;
  }));
  if (!is_released)
    return fail(Code::kTimeout,
                "the FMC does not let go of the GSP: {} is {:#x}, mailboxes {:#x} and {:#x}",
                hwcfg2.name, config, boxes.low, boxes.high);
  if (boxes.low != 0)
    return fail(Code::kIo, "the FMC reports {:#x} instead of starting the GSP", boxes.low);
  return {};
}

// P10.
Status GspCard::start_gsp() {
  switch (generation().path) {
    case BootPath::kBooterPio:
    case BootPath::kBooterDma: BM_TRY(start_with_booter()); break;
    case BootPath::kFsp: BM_TRY(start_with_fsp()); break;
  }
  bus_.write(gsp_->reg(falcon_reg::kOs), loader_.app_version);
  BM_TRY(gsp_->wait_riscv_active(kActiveUs));
  const uint64_t end = protected_memory_end(bus_);
  bus_.stages.note(fmt::format("protected memory up to {:#x}", end));
  return bus_.status();
}

// P11.
Status GspCard::start_resource_manager() {
  uint32_t operations = 0;
  queue_->set_sequencer([&](std::span<const std::byte> payload) -> Status {
    operations += BM_TRY(run_sequence(bus_,
                                      {.gsp = *gsp_,
                                       .sec2 = *sec2_,
                                       .libos_address = arguments_.regions.address(),
                                       .app_version = loader_.app_version},
                                      payload));
    return {};
  });
  BM_TRY(queue_->link(kLinkUs));
  BM_TRY(queue_->wait_event(RpcEvent::kGspInitDone, kInitUs));
  bus_.stages.note(fmt::format("{} sequencer operations", operations));
  // Later lists are the GSP's business no more: none comes once it is up.
  queue_->set_sequencer([](std::span<const std::byte>) -> Status {
    return fail(Code::kIo, "RUN_CPU_SEQUENCER came after GSP_INIT_DONE");
  });
  return {};
}

Status GspCard::unload_with_booter() {
  BM_TRY(bus_.wait_for(gsp_->reg(falcon_reg::kMailbox0), UINT32_MAX, kSuspended, kSuspendUs,
                       "the GSP does not stop after UNLOADING_GUEST_DRIVER"));
  if (fwsec_) {
    BM_TRY(run_fwsec(FwsecCommand::kSb));
    const uint32_t error = bus_.read(reg::kScratch.of(reg::kSbError)) & 0xffff;
    if (error != 0) return fail(Code::kIo, "FWSEC reports {:#x} for SB", error);
  }
  if (protected_memory_end(bus_) == 0) return bus_.status();
  if (!booter_unload_) return no_file(Kind::kBooterUnload);
  const uint64_t both = uint64_t{kUnloadMailbox} << 32 | kUnloadMailbox;
  const Mailboxes seen = BM_TRY(run_signed(*booter_unload_, both, "booter_unload"));
  if (seen.low != 0) return fail(Code::kIo, "booter_unload ends with {:#x}", seen.low);
  return {};
}

Status GspCard::unload_with_fsp() {
  // The FMC's lockdown may be on again while it takes the GSP down.
  const Register cpuctl = gsp_->reg(falcon_reg::kRiscvCpuctl);
  uint32_t seen = 0;
  if (BM_TRY(bus_.poll(kSuspendUs, [&] {
        seen = bus_.probe(cpuctl);
        return !is_silent(seen) && (seen & falcon_reg::kRiscvHalted) != 0;
      })))
    return {};
  return fail(Code::kTimeout, "the GSP does not halt after UNLOADING_GUEST_DRIVER: {} is {:#x}",
              cpuctl.name, seen);
}

Status GspCard::unload() {
  const abi::gsp::Gsp<abi::gsp::UnloadingGuestDriver> arguments;
  const RpcReply reply = BM_TRY(queue_->call({.what = "UNLOADING_GUEST_DRIVER",
                                              .function = RpcFunction::kUnloadingGuestDriver,
                                              .payload = arguments.bytes()}));
  if (reply.result != 0)
    return fail(Code::kIo, "UNLOADING_GUEST_DRIVER: status {:#x}", reply.result);
  queue_->close();
  switch (generation().path) {
    case BootPath::kBooterPio:
    case BootPath::kBooterDma: BM_TRY(unload_with_booter()); break;
    case BootPath::kFsp: BM_TRY(unload_with_fsp()); break;
  }
  if (!BM_TRY(bus_.poll(kReadableUs, [&] {
        const uint32_t high = bus_.probe(reg::kWpr2High);
        return !is_silent(high) && high >> 4 == 0;
      })))
    return fail(Code::kIo, "protected memory is still there: {} is {:#x}", reg::kWpr2High.name,
                bus_.probe(reg::kWpr2High));
  set_flush_page(0);
  return bus_.status();
}

Status GspCard::leave() {
  if (has_left_) return {};
  has_left_ = true;
  Status done;
  if (is_up_) done = bus_.run("P17 unload", [&] { return unload(); });
  queue_->close();
  if (const Status off = set_bus_master(*function_, false); done && !off) done = off;
  return done;
}

GspCard::~GspCard() {
  if (const Status left = leave(); !left)
    log("nv", LogLevel::kWarning, "{}; the next start resets the card", left.error().message);
}

}  // namespace bm::nv::gsp
