#include "tests/sim/nv/chip/secure_boot.h"

#include <algorithm>
#include <cstring>

#include <fmt/format.h>

#include "tests/sim/nv/bytes.h"

namespace bm::sim::nv::card {
namespace {

constexpr uint64_t kKiB = 1024, kMiB = 1024 * kKiB, kPage = 4096;
constexpr size_t kMetaBytes = 256;

/// Offsets of GspFwWprMeta.
enum Meta : size_t {
  kMagic = 0,
  kRevision = 8,
  kElfAt = 16,
  kElfBytes = 24,
  kLoaderAt = 32,
  kLoaderBytes = 40,
  kLoaderCode = 48,
  kLoaderData = 56,
  kLoaderManifest = 64,
  kSignatureAt = 72,
  kSignatureBytes = 80,
  kReserved = 88,
  kNonWpr = 96,
  kNonWprBytes = 104,
  kWprStart = 112,
  kHeap = 120,
  kHeapBytes = 128,
  kFirmware = 136,
  kBootBinary = 144,
  kFrts = 152,
  kFrtsBytes = 160,
  kWprEnd = 168,
  kMemoryBytes = 176,
  kVga = 184,
  kVgaBytes = 192,
  kBootCount = 200,
  kPmuBytes = 244,
  kVerified = 248,
};

uint64_t field(const Blob& meta, Meta at) { return get<uint64_t>(meta, at); }

/// NV_PFB_PRI_MMU_WPR2_ADDR_*: VAL 31:4 in units of 4 KiB; the region ends with the block of
/// 128 KiB that HI names.
constexpr uint64_t kWprBlock = 128 * kKiB;

}  // namespace

SecureBoot::SecureBoot(const CardRow& row, const CardFirmware& firmware, RegisterFile& registers,
                       Memory& memory, Falcon& gsp, Falcon* sec2)
    : row_(row),
      firmware_(firmware),
      registers_(registers),
      memory_(memory),
      gsp_(gsp),
      sec2_(sec2) {
  const auto add = [](Falcon& falcon, const std::optional<HsProgram>& program) {
    if (program) falcon.programs.push_back(&*program);
  };
  add(gsp_, firmware_.fwsec);
  if (sec2_ != nullptr) {
    add(*sec2_, firmware_.booter_load);
    add(*sec2_, firmware_.booter_unload);
    add(*sec2_, firmware_.scrubber);
    sec2_->run = [this](const HsProgram& p, std::span<const std::byte> d) { return run(p, d); };
  }
  if (firmware_.loader) gsp_.loader = &*firmware_.loader;
  gsp_.run = [this](const HsProgram& p, std::span<const std::byte> d) { return run(p, d); };

  registers_.declare(0x1fa824, "NV_PFB_PRI_MMU_WPR2_ADDR_LO", "turing/tu102/dev_fb.h",
                     {.read = [this] { return static_cast<uint32_t>(wpr_low_ >> 12 << 4); },
                      .is_read_only = true});
  registers_.declare(
      0x1fa828, "NV_PFB_PRI_MMU_WPR2_ADDR_HI", "turing/tu102/dev_fb.h",
      {.read =
           [this] {
             return wpr_high_ == 0 ? 0u : static_cast<uint32_t>((wpr_high_ - kWprBlock) >> 12 << 4);
           },
       .is_read_only = true});
  if (row_.frts_bytes != 0 && row_.boot != BootPath::kFsp) {
    const char* const source = "turing/tu102/dev_bus.h, NV_PBUS_VBIOS_SCRATCH";
    registers_.declare(0x1400 + 4 * 0x0e, "NV_PBUS_VBIOS_SCRATCH(0x0e)", source,
                       {.read = [this] { return scratch_[0]; }, .is_read_only = true});
    registers_.declare(0x1400 + 4 * 0x15, "NV_PBUS_VBIOS_SCRATCH(0x15)", source,
                       {.read = [this] { return scratch_[1]; }, .is_read_only = true});
  }
  if (row_.scrub_handoff != 0)
    registers_.declare(row_.scrub_handoff, "NV_PGC6_BSI_SECURE_SCRATCH_15",
                       "ada/ad102/dev_gc6_island.h",
                       {.read = [this] { return scrub_handoff_; }, .is_read_only = true});
  if (row_.boot == BootPath::kFsp)
    declare_fsp();
  else
    registers_.declare(
        0x1180f8, "NV_PGC6_BSI_SECURE_SCRATCH_14", "turing/tu102/dev_gc6_island.h",
        {.read = [this] { return is_handed_off_ ? 1u << 26 : 0u; }, .is_read_only = true});
  power_on();
}

void SecureBoot::power_on() {
  wpr_low_ = wpr_high_ = frts_ = libos_arguments_ = 0;
  awaits_resume = is_handed_off_ = false;
  scratch_[0] = scratch_[1] = 0;
  scrub_handoff_ = needs_scrub ? 0 : 3u << 29;
  boot_reads_left_ = kBootReads;
  saw_boot_ = is_chain_done_ = false;
  emem_control_ = queue_head_ = queue_tail_ = message_head_ = message_tail_ = 0;
  lockdown_left_ = masked_left_ = 0;
}

uint32_t SecureBoot::read_i2cs() {
  if (boot_reads_left_ > 0) {
    --boot_reads_left_;
    return 0;
  }
  saw_boot_ = true;
  return 0xff;
}

uint32_t SecureBoot::read_scratch05() { return read_i2cs(); }

bool SecureBoot::refuse(std::string what) {
  registers_.violations().add(std::move(what));
  return false;
}

bool SecureBoot::run(const HsProgram& program, std::span<const std::byte> data) {
  if (!saw_boot_) refuse(program.name + ": started before the ROM has finished its boot");
  switch (program.kind) {
    case HsProgram::Kind::kFwsec: return run_fwsec(data) || true;
    case HsProgram::Kind::kBooterLoad:
      sec2_->mailbox[0] = run_booter_load() ? 0 : 0x31;
      sec2_->mailbox[1] = 0;
      return true;
    case HsProgram::Kind::kBooterUnload:
      sec2_->mailbox[0] = run_booter_unload() ? 0 : 0x31;
      return true;
    case HsProgram::Kind::kScrubber: scrub_handoff_ = 3u << 29; return true;
  }
  return true;
}

// FALCON_APPLICATION_INTERFACE_DMEM_MAPPER_V3, FWSECLIC_FRTS_CMD.
bool SecureBoot::run_fwsec(std::span<const std::byte> data) {
  const HsProgram& program = *firmware_.fwsec;
  const uint32_t command = get<uint32_t>(data, program.mapper_at + 44);
  const auto input = data.subspan(get<uint32_t>(data, program.mapper_at + 8));
  const auto fails = [&](uint32_t* scratch, uint32_t code, const std::string& why) {
    *scratch = code;
    return refuse("FWSEC: " + why);
  };
  const bool is_frts = command == 0x15;
  uint32_t* const scratch = &scratch_[is_frts ? 0 : 1];
  if (!is_frts && command != 0x19) return fails(scratch, 1, fmt::format("command {:#x}", command));
  const uint32_t shift = is_frts ? 16 : 0;
  if (get<uint32_t>(input, 0) != 1 || get<uint32_t>(input, 4) != 24 ||
      get<uint32_t>(input, 20) != 2)
    return fails(scratch, 2u << shift, "a READ_VBIOS descriptor of another version, size or flags");
  if (!is_frts) {
    if (is_gsp_running()) return fails(scratch, 3, "command SB while GSP-RM runs");
    *scratch = 0;
    return true;
  }
  const uint64_t at = uint64_t{get<uint32_t>(input, 32)} << 12,
                 bytes = uint64_t{get<uint32_t>(input, 36)} << 12;
  if (get<uint32_t>(input, 24) != 1 || get<uint32_t>(input, 28) != 20)
    return fails(scratch, 4u << 16, "an FRTS descriptor of another version or size");
  if (get<uint32_t>(input, 40) != 2)
    return fails(scratch, 5u << 16, "FRTS outside of video memory");
  if (bytes != row_.frts_bytes || at % kWprBlock != 0 || at + bytes > memory_.video().size())
    return fails(scratch, 6u << 16,
                 fmt::format("FRTS at {:#x}, {:#x} bytes, is misaligned, of another size or beyond "
                             "video memory",
                             at, bytes));
  if (is_wpr_up()) return fails(scratch, 7u << 16, "FRTS where WPR2 is up already");
  frts_ = wpr_low_ = at;
  wpr_high_ = at + bytes;
  scratch_[0] = 0;
  return true;
}

bool SecureBoot::run_booter_load() {
  if (row_.frts_bytes != 0 && !is_wpr_up())
    return refuse("booter_load: no WPR2, FWSEC has not run");
  if (scrub_handoff_ >> 29 < 3) return refuse("booter_load: memory was not scrubbed");
  if (row_.boot == BootPath::kFalconDma && !gsp_.is_riscv_selected())
    return refuse("booter_load: the GSP was not reset into RISC-V");
  const uint64_t arguments = gsp_.mailbox[0] | uint64_t{gsp_.mailbox[1]} << 32;
  if (awaits_resume) {
    // GSP_SEQ_BUF_OPCODE_CORE_RESUME.
    if (arguments != libos_arguments_)
      return refuse(
          fmt::format("resume: libos arguments at {:#x}, not {:#x}", arguments, libos_arguments_));
    awaits_resume = false;
    is_handed_off_ = true;
    gsp_.is_riscv_active = true;
    on_resume();
    return true;
  }
  if (is_gsp_running()) return refuse("booter_load: GSP-RM runs already");
  const uint64_t address = sec2_->mailbox[0] | uint64_t{sec2_->mailbox[1]} << 32;
  Blob meta(kMetaBytes);
  if (!memory_.read(Aperture::kSystem, address, meta, "booter_load, WPR meta")) return false;
  if (!check_meta(meta) || !check_layout(meta) || !check_images(meta)) return false;
  wpr_low_ = field(meta, kWprStart);
  wpr_high_ = field(meta, kWprEnd);
  put<uint64_t>(meta, kVerified, 0xa0a0a0a0a0a0a0a0);
  memory_.write(Aperture::kVideo, wpr_low_, meta, "booter_load");
  libos_arguments_ = arguments;
  return start_gsp(arguments);
}

bool SecureBoot::run_booter_unload() {
  if (is_gsp_running()) return refuse("booter_unload while GSP-RM runs");
  wpr_low_ = wpr_high_ = frts_ = 0;
  return true;
}

bool SecureBoot::check_meta(const Blob& meta) {
  const auto fails = [&](const std::string& why) { return refuse("WPR meta: " + why); };
  if (field(meta, kMagic) != 0xdc3aae21371a60b3 || field(meta, kRevision) != 1)
    return fails("wrong magic or revision");
  if (field(meta, kVerified) != 0 || field(meta, kBootCount) != 0)
    return fails("verified or boot count are not 0");
  if (!firmware_.bootloader || !firmware_.gsp) return fails("no bootloader or gsp file was given");
  const RiscvImage& loader = *firmware_.bootloader;
  const struct {
    const char* name;
    Meta at;
    uint64_t wanted;
  } all[] = {{"sizeOfRadix3Elf", kElfBytes, firmware_.gsp->image.size()},
             {"sizeOfBootloader", kLoaderBytes, loader.image.size()},
             {"bootloaderCodeOffset", kLoaderCode, loader.code},
             {"bootloaderDataOffset", kLoaderData, loader.data},
             {"bootloaderManifestOffset", kLoaderManifest, loader.manifest}};
  for (const auto& one : all)
    if (field(meta, one.at) != one.wanted)
      return fails(fmt::format("{} is {:#x}, the file says {:#x}", one.name, field(meta, one.at),
                               one.wanted));
  const uint64_t heap = field(meta, kHeapBytes);
  if (heap % kMiB != 0 || heap < row_.least_heap_mib * kMiB || heap > row_.most_heap_mib * kMiB)
    return fails(fmt::format("gspFwHeapSize {:#x} is not {} to {} whole MiB", heap,
                             row_.least_heap_mib, row_.most_heap_mib));
  if (field(meta, kNonWprBytes) < row_.non_wpr_heap)
    return fails(fmt::format("nonWprHeapSize {:#x} is less than {:#x}", field(meta, kNonWprBytes),
                             row_.non_wpr_heap));
  if (field(meta, kFrtsBytes) != row_.frts_bytes)
    return fails(fmt::format("frtsSize is {:#x}", field(meta, kFrtsBytes)));
  if (field(meta, kSignatureBytes) < firmware_.gsp->signature.size())
    return fails(
        fmt::format("sizeOfSignature {:#x} is less than the file's", field(meta, kSignatureBytes)));
  return true;
}

bool SecureBoot::check_layout(const Blob& meta) {
  const uint64_t memory = memory_.video().size();
  const struct Region {
    const char* name;
    uint64_t at, bytes, alignment;
  } all[] = {
      {"nonWprHeap", field(meta, kNonWpr), field(meta, kNonWprBytes), kMiB},
      {"gspFwWprStart", field(meta, kWprStart), kMetaBytes, kWprBlock},
      {"gspFwHeap", field(meta, kHeap), field(meta, kHeapBytes), kMiB},
      {"gspFw", field(meta, kFirmware), field(meta, kElfBytes), 64 * kKiB},
      {"bootBin", field(meta, kBootBinary), field(meta, kLoaderBytes), kPage},
      {"frts", field(meta, kFrts), field(meta, kFrtsBytes), row_.frts_bytes == 0 ? 1 : kWprBlock},
      {"vgaWorkspace", field(meta, kVga), field(meta, kVgaBytes), kPage},
  };
  const Region* before = nullptr;
  for (const Region& one : all) {
    if (one.at % one.alignment != 0)
      return refuse(fmt::format("WPR meta: {} at {:#x} is no multiple of {:#x}", one.name, one.at,
                                one.alignment));
    if (one.at > memory || one.bytes > memory - one.at)
      return refuse(fmt::format("WPR meta: {} ends behind video memory", one.name));
    if (before != nullptr && before->at + before->bytes > one.at)
      return refuse(fmt::format("WPR meta: {} and {} overlap", before->name, one.name));
    before = &one;
  }
  const uint64_t end = field(meta, kWprEnd);
  if (end % kWprBlock != 0 || end != field(meta, kFrts) + field(meta, kFrtsBytes) ||
      end > field(meta, kVga))
    return refuse(fmt::format("WPR meta: gspFwWprEnd {:#x} is not the end of FRTS", end));
  if (row_.frts_bytes != 0 && field(meta, kFrts) != frts_)
    return refuse(
        fmt::format("WPR meta: FRTS at {:#x}, FWSEC made it at {:#x}", field(meta, kFrts), frts_));
  if (field(meta, kReserved) != field(meta, kNonWpr) ||
      field(meta, kNonWpr) + field(meta, kNonWprBytes) != field(meta, kWprStart))
    return refuse("WPR meta: the non-WPR heap does not end where WPR begins");
  if (field(meta, kMemoryBytes) != memory || field(meta, kVga) + field(meta, kVgaBytes) != memory)
    return refuse(fmt::format("WPR meta: fbSize {:#x}, or the VGA workspace does not end there",
                              field(meta, kMemoryBytes)));
  return true;
}

// The FMC computes the places itself.
bool SecureBoot::check_sizes(const Blob& meta) {
  for (const Meta at : {kReserved, kNonWpr, kWprStart, kHeap, kFirmware, kBootBinary, kFrts,
                        kWprEnd, kMemoryBytes, kVga})
    if (field(meta, at) != 0)
      return refuse(fmt::format("WPR meta: the word at {} is not 0, the FMC computes it",
                                static_cast<size_t>(at)));
  if (field(meta, kVgaBytes) != 128 * kKiB)
    return refuse(fmt::format("WPR meta: vgaWorkspaceSize is {:#x}", field(meta, kVgaBytes)));
  return true;
}

bool SecureBoot::check_images(const Blob& meta) {
  Blob loader(firmware_.bootloader->image.size()), signature(firmware_.gsp->signature.size());
  if (!memory_.read(Aperture::kSystem, field(meta, kLoaderAt), loader, "WPR meta, bootloader") ||
      !memory_.read(Aperture::kSystem, field(meta, kSignatureAt), signature, "WPR meta, signature"))
    return false;
  if (loader != firmware_.bootloader->image)
    return refuse("the GSP's boot loader differs from the file");
  if (signature != firmware_.gsp->signature)
    return refuse(fmt::format("the GSP image's signature is not {}", row_.signature));
  return check_radix(field(meta, kElfAt), field(meta, kElfBytes));
}

// LIBOS_MEMORY_REGION_RADIX3: pages of 512 addresses, three levels, then the image.
bool SecureBoot::check_radix(uint64_t root, uint64_t bytes) {
  const uint64_t pages = (bytes + kPage - 1) / kPage;
  std::vector<uint64_t> level = {root};
  for (int depth = 0; depth < 3; ++depth) {
    const uint64_t span = depth == 0 ? 512 * 512 : depth == 1 ? 512 : 1;
    const uint64_t wanted = (pages + span - 1) / span;
    std::vector<uint64_t> next;
    for (const uint64_t page : level) {
      if (page % kPage != 0)
        return refuse(fmt::format("radix list: {:#x} is no page's address", page));
      Blob entries(kPage);
      if (!memory_.read(Aperture::kSystem, page, entries,
                        fmt::format("radix list, level {}", depth)))
        return false;
      for (size_t i = 0; i < 512 && next.size() < wanted; ++i)
        next.push_back(get<uint64_t>(entries, 8 * i));
    }
    if (next.size() < wanted || std::ranges::count(next, 0u) != 0)
      return refuse(fmt::format("radix list: level {} covers {} pages of {}", depth,
                                next.size() - static_cast<size_t>(std::ranges::count(next, 0u)),
                                wanted));
    level = std::move(next);
  }
  const Blob& image = firmware_.gsp->image;
  Blob page(kPage);
  for (size_t i = 0; i < level.size(); ++i) {
    const uint64_t at = i * kPage, part = std::min(kPage, image.size() - at);
    const std::span<std::byte> bytes_of(page.data(), part);
    if (!memory_.read(Aperture::kSystem, level[i], bytes_of, "radix list, image")) return false;
    if (std::memcmp(page.data(), &image[at], part) != 0)
      return refuse(fmt::format("the GSP image differs from the file in page {}", i));
  }
  return true;
}

void SecureBoot::declare_fsp() {
  const char* const source = "hopper/gh100/dev_fsp_pri.h";
  registers_.declare(0x8f2ac0, "NV_PFSP_EMEMC(0)", source,
                     {.read = [this] { return emem_control_; },
                      .write = [this](uint32_t v) { emem_control_ = v; }});
  registers_.declare(0x8f2ac4, "NV_PFSP_EMEMD(0)", source,
                     {.read =
                          [this] {
                            const uint32_t at = emem_control_ & 0xfffc;
                            if (bits(emem_control_, 25, 25) != 0) emem_control_ += 4;
                            return get<uint32_t>(emem_, at);
                          },
                      .write =
                          [this](uint32_t v) {
                            const uint32_t at = emem_control_ & 0xfffc;
                            if (at + 4 > emem_.size())
                              refuse(fmt::format("FSP: its channel ends before {:#x}", at));
                            put<uint32_t>(emem_, at, v);
                            if (bits(emem_control_, 24, 24) != 0) emem_control_ += 4;
                          }});
  registers_.declare(
      0x8f2c04, "NV_PFSP_QUEUE_TAIL(0)", source,
      {.read = [this] { return queue_tail_; }, .write = [this](uint32_t v) { queue_tail_ = v; }});
  // The head rings.
  registers_.declare(0x8f2c00, "NV_PFSP_QUEUE_HEAD(0)", source,
                     {.read = [this] { return queue_head_; },
                      .write =
                          [this](uint32_t v) {
                            queue_head_ = v;
                            receive();
                          }});
  registers_.declare(0x8f2c80, "NV_PFSP_MSGQ_HEAD(0)", source,
                     {.read = [this] { return message_head_; },
                      .write = [this](uint32_t v) { message_head_ = v; }});
  registers_.declare(0x8f2c84, "NV_PFSP_MSGQ_TAIL(0)", source,
                     {.read = [this] { return message_tail_; },
                      .write = [this](uint32_t v) { message_tail_ = v; }});
  for (uint32_t i = 0; i < 4; ++i)
    registers_.declare(0x8f0320 + 4 * i,
                       fmt::format("NV_PFSP_FALCON_COMMON_SCRATCH_GROUP_2({})", i), source,
                       {.is_read_only = true});
  for (uint32_t i = 0; i < 4; ++i)
    registers_.declare(0x8f0330 + 4 * i,
                       fmt::format("NV_PFSP_FALCON_COMMON_SCRATCH_GROUP_3({})", i), source,
                       {.is_read_only = true});
  gsp_.hwcfg2_bits = [this] {
    if (lockdown_left_ == 0) return 0u;
    --lockdown_left_;
    return 1u << 13;  // RISCV_BR_PRIV_LOCKDOWN
  };
  // The target mask: reads of the GSP are refused until the FMC releases it.
  gsp_.locked = [this]() -> uint32_t {
    if (masked_left_ == 0) return 0;
    --masked_left_;
    return 0xbadf4100;
  };
}

void SecureBoot::receive() {
  if (!saw_boot_) {
    refuse("FSP: a message before its boot has finished");
    return;
  }
  if (message_head_ != message_tail_) refuse("FSP: a message while its last answer was not taken");
  const uint32_t bytes = queue_tail_ - queue_head_ + 4;
  if (queue_head_ % 4 != 0 || queue_tail_ < queue_head_ || queue_head_ + bytes > emem_.size()) {
    refuse(fmt::format("FSP: a message from {:#x} to {:#x}", queue_head_, queue_tail_));
    return;
  }
  const Blob message(emem_.begin() + queue_head_, emem_.begin() + queue_head_ + bytes);
  const uint32_t error = handle_message(message);
  // NVDM_PAYLOAD_COMMAND_RESPONSE: task, command, error.
  const uint32_t type = message.size() > 7 ? std::to_integer<uint32_t>(message[7]) : 0;
  const uint32_t answer[] = {1u << 31 | 1u << 30, 0x7eu | 0x10de << 8 | 0x15u << 24, 0, type,
                             error};
  for (size_t i = 0; i < std::size(answer); ++i) put<uint32_t>(emem_, 4 * i, answer[i]);
  queue_tail_ = queue_head_;
  message_head_ = 0;
  message_tail_ = sizeof answer - 4;
}

uint32_t SecureBoot::handle_message(std::span<const std::byte> message) {
  const auto fails = [&](uint32_t code, const std::string& why) {
    refuse("FSP: " + why);
    return code;
  };
  // MCTP header: one packet is its first and its last; NVDM header: vendor message of NVIDIA's.
  const uint32_t mctp = get<uint32_t>(message, 0), nvdm = get<uint32_t>(message, 4);
  if (message.size() < 8 || bits(mctp, 31, 30) != 3 || bits(mctp, 23, 16) != 0)
    return fails(0x4, fmt::format("MCTP header {:#x}: not a single packet to endpoint 0", mctp));
  if ((nvdm & 0xffffff) != (0x7e | 0x10de << 8))
    return fails(0x4, fmt::format("NVDM header {:#x}: not of NVIDIA's", nvdm));
  if (nvdm >> 24 != 0x14) return fails(0x3, fmt::format("NVDM type {:#x}", nvdm >> 24));
  return boot_chain(message.subspan(8));
}

// NVDM_PAYLOAD_COT.
uint32_t SecureBoot::boot_chain(std::span<const std::byte> payload) {
  constexpr size_t kBytes = 860, kHash = 36, kKey = 84, kSignature = 468, kArguments = 852;
  const auto fails = [&](uint32_t code, const std::string& why) {
    refuse("chain of trust: " + why);
    return code;
  };
  if (is_chain_done_) return fails(0x5, "a second one");
  // What is sent is a multiple of 4, and tinygrad's driver adds a word.
  if (payload.size() < kBytes || payload.size() > kBytes + 4 || get<uint16_t>(payload, 2) != kBytes)
    return fails(0x6,
                 fmt::format("{} bytes, size word {}", payload.size(), get<uint16_t>(payload, 2)));
  if (get<uint16_t>(payload, 0) != row_.cot_version)
    return fails(0x7, fmt::format("version {}, the chip's is {}", get<uint16_t>(payload, 0),
                                  row_.cot_version));
  if (!firmware_.fmc) return fails(0x8, "no fmc file was given");
  const FmcImage& fmc = *firmware_.fmc;
  const auto is_equal = [&](size_t at, size_t room, const Blob& wanted, uint32_t bytes) {
    const auto there = payload.subspan(at, room);
    const size_t count = std::min<size_t>(bytes, wanted.size());
    return std::equal(wanted.begin(), wanted.begin() + static_cast<ptrdiff_t>(count),
                      there.begin()) &&
           std::all_of(there.begin() + static_cast<ptrdiff_t>(count), there.end(),
                       [](std::byte one) { return one == std::byte{0}; });
  };
  if (!is_equal(kHash, 48, fmc.hash, 48)) return fails(0x9, "the hash is not the file's");
  if (!is_equal(kKey, 384, fmc.key, row_.key_bytes))
    return fails(0xa, "the public key is not the file's");
  if (!is_equal(kSignature, 384, fmc.signature, row_.signature_bytes))
    return fails(0xb, "the signature is not the file's");
  const uint64_t image_at = get<uint64_t>(payload, 4),
                 arguments = get<uint64_t>(payload, kArguments);
  const uint64_t frts_from_end = get<uint64_t>(payload, 24);
  const uint32_t frts_bytes = get<uint32_t>(payload, 32);
  Blob image(fmc.image.size());
  if (!memory_.read(Aperture::kSystem, image_at, image, "chain of trust, FMC image")) return 0xc;
  if (image != fmc.image) return fails(0xd, "the FMC image differs from the file");
  if (frts_bytes != row_.frts_bytes || frts_from_end % (2 * kMiB) != 0 ||
      frts_from_end < row_.non_wpr_heap || frts_from_end > memory_.video().size())
    return fails(0xe, fmt::format("FRTS of {:#x} bytes, {:#x} before the end of memory", frts_bytes,
                                  frts_from_end));
  is_chain_done_ = true;
  return boot_fmc(arguments, frts_from_end, frts_bytes);
}

// GSP_FMC_BOOT_PARAMS: regkeys; target, size, address, carve-out {address, size}, is RM; target,
// address; SPDM. What the FMC finds wrong stands in MAILBOX0.
uint32_t SecureBoot::boot_fmc(uint64_t arguments, uint64_t frts_from_end, uint32_t frts_bytes) {
  constexpr size_t kBytes = 80;
  fmc_arguments_ = arguments;
  gsp_.mailbox[0] = static_cast<uint32_t>(arguments);
  gsp_.mailbox[1] = static_cast<uint32_t>(arguments >> 32);
  masked_left_ = 2;
  lockdown_left_ = 2;
  const auto fails = [&](const std::string& why) -> uint32_t {
    if (!why.empty()) refuse("FMC: " + why);
    gsp_.mailbox[0] = 0x35;
    gsp_.mailbox[1] = 0;
    lockdown_left_ = UINT32_MAX;
    return 0;
  };
  Blob parameters(kBytes);
  if (!memory_.read(Aperture::kSystem, arguments, parameters, "FMC boot parameters"))
    return fails("");
  // GSP_DMA_TARGET: the WPR meta is coherent system memory; the libos arguments are either kind.
  if (get<uint32_t>(parameters, 8) != 1 || get<uint32_t>(parameters, 40) < 1 ||
      get<uint32_t>(parameters, 40) > 2)
    return fails("a target that is not system memory");
  if (get<uint32_t>(parameters, 12) != kMetaBytes || get<uint8_t>(parameters, 36) != 1)
    return fails("gspRmDescSize is not 256, or it is not GSP-RM's boot");
  Blob meta(kMetaBytes);
  if (!memory_.read(Aperture::kSystem, get<uint64_t>(parameters, 16), meta, "FMC, WPR meta"))
    return fails("");
  if (!check_meta(meta) || !check_sizes(meta) || !check_images(meta)) return fails("");
  // From the top: FRTS, boot loader, image, heap, meta.
  const uint64_t end = memory_.video().size() - frts_from_end;
  frts_ = end - frts_bytes;
  const uint64_t boot = (frts_ - field(meta, kLoaderBytes)) / kPage * kPage;
  const uint64_t image = (boot - field(meta, kElfBytes)) / (64 * kKiB) * (64 * kKiB);
  const uint64_t heap = (image - field(meta, kHeapBytes)) / kMiB * kMiB;
  wpr_low_ = heap - kMiB;
  wpr_high_ = end;
  put<uint64_t>(meta, kVerified, 0xa0a0a0a0a0a0a0a0);
  memory_.write(Aperture::kVideo, wpr_low_, meta, "FMC");
  gsp_.mailbox[0] = gsp_.mailbox[1] = 0;
  if (!start_gsp(get<uint64_t>(parameters, 48))) return fails("");
  return 0;
}

}  // namespace bm::sim::nv::card
