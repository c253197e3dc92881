#include "tests/sim/amd/chip/psp.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <utility>

#include <fmt/format.h>

namespace bm::sim::amd {
namespace {

constexpr uint32_t kReady = 0x80000000;
// amdgpu_psp.h, PSP_BL__LOAD_*: a row's place is its turn. Which ones there are follows from what
// the files hold: psp_13_0_0_sos.bin and psp_13_0_7_sos.bin have no drivers but the system's, those
// of 13.0.10 and 14.0 have.
enum class Need : uint8_t { kOptional, kNewer, kAlways };
struct BootStep {
  uint32_t command;
  const char* name;
  Need need;
};
constexpr std::array<BootStep, 10> kBootSteps = {{
    {0x80000, "key database", Need::kAlways},
    {0x10000000, "SPL table", Need::kOptional},
    {0x10000, "system driver", Need::kAlways},
    {0xb0000, "SoC driver", Need::kNewer},
    {0xd0000, "interface driver", Need::kNewer},
    {0xc0000, "debug driver", Need::kNewer},
    {0xe0000, "RAS driver", Need::kOptional},
    {0xf0000, "key manager driver", Need::kOptional},
    {0x20000000, "SPDM driver", Need::kOptional},
    {0x20000, "secure OS", Need::kAlways},
}};
constexpr uint32_t kLoadOs = 0x20000;

// psp_gfx_if.h, psp_gfx_crtl_cmd_id and psp_gfx_cmd_id.
constexpr uint32_t kMakeKernelRing = 2u << 16, kDestroyRings = 3u << 16;
constexpr uint32_t kLoadTa = 1, kUnloadTa = 2, kSetupTmr = 5, kLoadIpFw = 6, kDestroyTmr = 7,
                   kBootConfig = 0x22, kLoadToc = 0x20, kAutoload = 0x21, kInvoke = 3,
                   kPartition = 0x27;
// psp_gfx_cmd_resp: dwords of the command's own words and of the answer.
constexpr size_t kCommandDwords = 256, kId = 2, kArguments = 7, kAnswer = 864 / 4;
constexpr uint32_t kFrameDwords = 16;
// amdgpu_psp.h, PSP_ERR_UNKNOWN_COMMAND; the other one is TEE_ERROR_BAD_PARAMETERS of the
// GlobalPlatform TEE Client API, which the secure OS answers in (psp_gfx_if.h, tee_error_code).
constexpr uint32_t kUnknownCommand = 0x100, kBadParameters = 0xffff0006, kBadState = 0xffff0007,
                   kBadImage = 0xffff3071 /* TEE_ERROR_MAC_INVALID */;

}  // namespace

Psp::Psp(RegisterBus& bus, Fabric& fabric, Hub& hub) : bus_(bus), fabric_(fabric), hub_(hub) {
  const bool is_14 = bus.row().ip(Ip::kMp0).version.major >= 14;
  const auto name = [is_14](uint32_t i) {
    return fmt::format("{}_SMN_C2PMSG_{}", is_14 ? "MPASP" : "MP0", i);
  };
  boot_ = &bus.declare(Ip::kMp0, name(35),
                       {.reset = kReady,
                        .read =
                            [this] {
                              if (*boot_ != kReady && boot_polls_ > 0 && --boot_polls_ == 0)
                                *boot_ = kReady;
                              return *boot_;
                            },
                        .write = [this](uint32_t value) { boot_command(value); }});
  boot_address_ = &bus.declare(Ip::kMp0, name(36));
  control_ = &bus.declare(Ip::kMp0, name(64),
                          {.read =
                               [this] {
                                 if (control_polls_ > 0 && --control_polls_ == 0)
                                   *control_ = control_answer_;
                                 return *control_;
                               },
                           .write = [this](uint32_t value) { ring_control(value); }});
  wptr_ =
      &bus.declare(Ip::kMp0, name(67), {.write = [this](uint32_t value) { run_frames(value); }});
  ring_lo_ = &bus.declare(Ip::kMp0, name(69));
  ring_hi_ = &bus.declare(Ip::kMp0, name(70));
  ring_size_ = &bus.declare(Ip::kMp0, name(71));
  sign_of_life_ = &bus.declare(Ip::kMp0, name(81),
                               {.read =
                                    [this] {
                                      // The last image has no answer but this one.
                                      if (life_polls_ > 0 && --life_polls_ == 0) {
                                        has_os_ = true;
                                        *sign_of_life_ = 0x10f;
                                        *control_ = kReady;
                                      }
                                      return *sign_of_life_;
                                    },
                                .is_read_only = true});
  version_ = bus.declare_if_there(Ip::kMp0, name(58), {.is_read_only = true});
  bus.declare_all(Ip::kMp0, "MP");
}

void Psp::reset() {
  boot_polls_ = control_polls_ = life_polls_ = 0;
  control_answer_ = read_pointer_ = 0;
  booted_.clear();
  loaded_.clear();
  missing_.clear();
  partitions_ = 0;
  has_os_ = has_ring_ = has_region_ = is_autoload_done_ = knows_contents_ = false;
}

void Psp::leave_running() {
  has_os_ = has_ring_ = has_region_ = true;
  *sign_of_life_ = 0x10f;
  *control_ = kReady;
  *ring_size_ = 0x10000;
  // Somewhere in the last eighth, where its driver had it.
  const uint64_t ring = fabric_.fb_base + fabric_.vram->size() / 8 * 7;
  *ring_lo_ = static_cast<uint32_t>(ring);
  *ring_hi_ = static_cast<uint32_t>(ring >> 32);
}

bool Psp::fetch(uint64_t address, std::span<std::byte> to, const char* what) {
  if (!hub_.read(address, to)) {
    violation(fmt::format("{} at {:#x} is nowhere", what, address));
    return false;
  }
  const uint64_t offset = address - fabric_.fb_base;
  if (offset < fabric_.vram->size() && fabric_.vram->holds(offset, to.size())) {
    violation(
        fmt::format("{} at {:#x}: the HDP holds part of it, nobody flushed it", what, address));
    return fabric_.vram->writes_through;
  }
  return true;
}

bool Psp::check_image(uint64_t address, uint64_t bytes, const std::string& what, Image kind) {
  if (kind == Image::kOpaque) {
    std::vector<std::byte> all(bytes / 4 * 4);
    if (!fetch(address, all, what.c_str())) return false;
    const std::span words(reinterpret_cast<const uint32_t*>(all.data()), all.size() / 4);
    if (std::ranges::count(words, Vram::kPoison) <= 8) return true;
    violation(fmt::format("{} at {:#x} is partly memory that nobody wrote", what, address));
    return false;
  }
  constexpr uint64_t kHeader = 0x100, kAround = 0x200;
  std::array<std::byte, kHeader> header{};
  if (bytes != 0 && bytes < kHeader) {
    violation(fmt::format("{} of {} bytes", what, bytes));
    return false;
  }
  if (!fetch(address, header, what.c_str())) return false;
  uint32_t is_signed = 0;
  std::memcpy(&is_signed, &header[0x14], 4);
  if (kind != Image::kKeys && std::memcmp(&header[0x10], "$PS1", 4) != 0) {
    violation(fmt::format("{} at {:#x} has no $PS1 at byte 16", what, address));
    return false;
  }
  // The whole of it is looked at: a copy that was cut short ends in poison.
  const uint64_t whole = uint64_t{is_signed} + kAround;
  const bool fits = bytes == 0 || whole == bytes || (kind == Image::kPadded && whole < bytes);
  if (!fits || whole > (1 << 20)) {
    violation(fmt::format("{} of {:#x} bytes says that it has {:#x}", what, bytes, whole));
    return false;
  }
  std::vector<std::byte> all(std::max(whole, bytes) / 4 * 4);
  if (!fetch(address, all, what.c_str())) return false;
  const std::span last(reinterpret_cast<const uint32_t*>(all.data()), all.size() / 4);
  if (std::ranges::count(last, Vram::kPoison) > 8) {
    violation(fmt::format("{} at {:#x} is partly memory that nobody wrote", what, address));
    return false;
  }
  return true;
}

void Psp::boot_command(uint32_t command) {
  const auto fail = [&](const std::string& why) {
    violation(fmt::format("boot loader command {:#x}: {}", command, why));
    *boot_ = (command & ~kReady & ~0xffu) | 1;
    boot_polls_ = 0;
  };
  if (has_os_) return fail("the secure OS runs already");
  if (*boot_ != kReady) return fail("it is not ready");
  const auto step = std::ranges::find(kBootSteps, command, &BootStep::command);
  if (step == kBootSteps.end()) return fail("unknown");
  // psp_v13_0_bootloader_load_spl() sends the key database once more, under the table's number.
  for (auto later = step; later != kBootSteps.end(); ++later)
    if (booted_.contains(later->command)) return fail(fmt::format("{} came before", later->name));
  const IpVersion& version = bus_.row().ip(Ip::kMp0).version;
  const bool is_newer = version.major >= 14 || version.revision >= 10 || bus_.row().has_direct_load;
  for (auto earlier = kBootSteps.begin(); earlier != step; ++earlier)
    if ((earlier->need == Need::kAlways || (earlier->need == Need::kNewer && is_newer)) &&
        !booted_.contains(earlier->command))
      return fail(fmt::format("no {} yet", earlier->name));
  const bool is_keys = command == 0x80000 || command == 0x10000000;
  if (!check_image(uint64_t{*boot_address_} << 20, 0, step->name,
                   is_keys ? Image::kKeys : Image::kPlain))
    return fail("image refused");
  booted_.insert(command);
  *boot_ = command;
  if (hangs) {
    boot_polls_ = 0;
    return;
  }
  if (command == kLoadOs)
    life_polls_ = 2;
  else
    boot_polls_ = 2;
}

void Psp::ring_control(uint32_t command) {
  control_polls_ = 2;
  control_answer_ = kReady;
  *control_ = command;
  const auto fail = [&](const std::string& why) {
    violation(fmt::format("ring control {:#x}: {}", command, why));
    control_answer_ = kReady | 0xffff;
  };
  if (!has_os_) return fail("the secure OS does not run");
  if (command == kDestroyRings) {
    has_ring_ = false;
    *ring_size_ = 0;
    return;
  }
  if (command != kMakeKernelRing) return fail("unknown");
  if (has_ring_) return fail("there is a ring already");
  if (*ring_size_ == 0 || *ring_size_ % (kFrameDwords * 4) != 0 || ring_address() % 4096 != 0)
    return fail(fmt::format("{} bytes at {:#x}", *ring_size_, ring_address()));
  has_ring_ = true;
  *wptr_ = read_pointer_ = 0;
}

void Psp::run_frames(uint32_t write_pointer) {
  *wptr_ = write_pointer;
  const uint32_t ring_dwords = *ring_size_ / 4;
  if (!has_ring_ || write_pointer % kFrameDwords != 0 || write_pointer > ring_dwords)
    return violation(fmt::format("write pointer {:#x} of a ring of {:#x} dwords{}", write_pointer,
                                 ring_dwords, has_ring_ ? "" : " that was not made"));
  while (read_pointer_ % ring_dwords != write_pointer % ring_dwords) {
    std::array<uint32_t, kFrameDwords> frame{};
    const uint64_t at = ring_address() + uint64_t{read_pointer_ % ring_dwords} * 4;
    read_pointer_ = (read_pointer_ + kFrameDwords) % ring_dwords;
    if (!fetch(at, std::as_writable_bytes(std::span(frame)), "frame")) return;
    const uint64_t address = uint64_t{frame[1]} << 32 | frame[0],
                   fence = uint64_t{frame[4]} << 32 | frame[3];
    if (address % 4096 != 0) violation(fmt::format("command at {:#x} is not aligned", address));
    std::vector<uint32_t> command(kCommandDwords);
    if (!fetch(address, std::as_writable_bytes(std::span(command)), "command")) return;
    const auto planted = planted_status.find(command[kId]);
    std::fill(command.begin() + kAnswer, command.begin() + kAnswer + 24, 0u);
    const uint32_t status = planted != planted_status.end() ? planted->second : execute(command);
    command[kAnswer] = status;
    if (!hub_.write(address + kAnswer * 4,
                    std::as_bytes(std::span(command).subspan(kAnswer, 24))) ||
        !hub_.write(fence, std::as_bytes(std::span(&frame[5], 1))))
      violation(fmt::format("answer at {:#x} or fence at {:#x} cannot be written", address, fence));
  }
}

uint32_t Psp::execute(std::vector<uint32_t>& command) {
  const auto pair = [&](size_t i) {
    return uint64_t{command[kArguments + i + 1]} << 32 | command[kArguments + i];
  };
  switch (command[kId]) {
    case kLoadToc:
      if (!check_image(pair(0), command[kArguments + 2], "table of contents")) return kBadImage;
      knows_contents_ = true;
      command[kAnswer + 4] = region_bytes;
      return 0;
    case kSetupTmr: return setup_region(command);
    case kDestroyTmr: has_region_ = false; return 0;
    case kLoadIpFw: return load(command);
    case kAutoload:
      if (!bus_.row().has_direct_load) return autoload();
      violation("AUTOLOAD_RLC on a chip that has none");
      return kUnknownCommand;
    case kPartition: return partition(command[kArguments]);
    case kLoadTa:
      if (!check_image(pair(0), command[kArguments + 2], "trusted application")) return kBadImage;
      command[kAnswer + 1] = 1;  // session
      return 0;
    case kUnloadTa:
    case kInvoke:
    case kBootConfig: return 0;
    default: violation(fmt::format("unknown command {:#x}", command[kId])); return kUnknownCommand;
  }
}

uint32_t Psp::setup_region(const std::vector<uint32_t>& command) {
  const uint64_t address = uint64_t{command[kArguments + 1]} << 32 | command[kArguments],
                 bytes = command[kArguments + 2];
  // Where the boot loader made the region itself the driver may say so with nothing.
  if (bus_.row().has_reserved_tmr && bytes == 0) {
    has_region_ = true;
    return 0;
  }
  const uint64_t offset = address - fabric_.fb_base;
  if (!knows_contents_) {
    violation("SETUP_TMR before LOAD_TOC");
    return kBadState;
  }
  if (bytes < region_bytes || address % (1 << 20) != 0 || offset > fabric_.vram->size() ||
      bytes > fabric_.vram->size() - offset) {
    violation(fmt::format("SETUP_TMR of {:#x} bytes at {:#x}: {:#x} are needed, aligned to 1 MiB",
                          bytes, address, region_bytes));
    return kBadParameters;
  }
  has_region_ = true;
  return 0;
}

uint32_t Psp::load(const std::vector<uint32_t>& command) {
  const uint64_t address = uint64_t{command[kArguments + 1]} << 32 | command[kArguments];
  const uint32_t bytes = command[kArguments + 2], type = command[kArguments + 3];
  const bool is_smu = type == static_cast<uint32_t>(FirmwareType::kSmu);
  if (type == 0 || type > 129) {
    violation(fmt::format("LOAD_IP_FW of type {}", type));
    return kBadParameters;
  }
  const bool is_direct = bus_.row().has_direct_load;
  if (!has_region_ && (is_direct || !bus_.row().has_reserved_tmr) && !is_smu) {
    violation(fmt::format("LOAD_IP_FW of type {} before SETUP_TMR", type));
    return kBadState;
  }
  if (address % 4096 != 0) violation(fmt::format("firmware at {:#x} is not aligned", address));
  const bool is_stack = type >= 90 && type <= 97;  // GFX_FW_TYPE_RS64_*_STACK
  if (!check_image(address, bytes, fmt::format("firmware of type {}", type),
                   is_direct  ? Image::kOpaque
                   : is_stack ? Image::kPadded
                              : Image::kPlain))
    return kBadImage;
  loaded_.insert(type);
  if (is_smu && on_smu_loaded) on_smu_loaded();
  if (is_direct) boot_when_complete();
  return 0;
}

void Psp::boot_when_complete() {
  using enum FirmwareType;
  for (const FirmwareType type : {kMec, kMecJumpTable, kRlcG, kSdma0, kRegisterList})
    if (!has(type)) return;
  if (std::exchange(is_autoload_done_, true)) return;
  if (on_autoload) on_autoload();
}

uint32_t Psp::partition(uint32_t count) {
  if (!is_autoload_done_) {
    violation("SPATIAL_PART before the graphics core's files");
    return kBadState;
  }
  if (count == 0 || bus_.row().xccs() % count != 0) {
    violation(
        fmt::format("SPATIAL_PART of {} partitions of {} chiplets", count, bus_.row().xccs()));
    return kBadParameters;
  }
  partitions_ = count;
  return 0;
}

uint32_t Psp::autoload() {
  using enum FirmwareType;
  std::vector<std::pair<FirmwareType, const char*>> needed = {
      {kSmu, "SMU"},          {kImuI, "IMU_I"},
      {kImuD, "IMU_D"},       {kRlcG, "RLC_G"},
      {kRlcIram, "RLC_IRAM"}, {kRlcDram, "RLC_DRAM_BOOT"},
      {kRs64Mec, "RS64_MEC"}, {kRs64MecStack, "RS64_MEC_P0_STACK"},
      {kSdmaTh0, "SDMA_TH0"}};
  if (bus_.row().generation == 11)
    needed.emplace_back(kSdmaTh1, "SDMA_TH1");
  else
    needed.insert(needed.end(), {{kRs64Pfp, "RS64_PFP"},
                                 {kRs64Me, "RS64_ME"},
                                 {kRs64PfpStack, "RS64_PFP_P0_STACK"},
                                 {kRs64MeStack, "RS64_ME_P0_STACK"}});
  missing_.clear();
  for (const auto& [type, what] : needed)
    if (!has(type)) missing_ += fmt::format("{}{}", missing_.empty() ? "" : ", ", what);
  if (!missing_.empty()) {
    violation("AUTOLOAD_RLC without " + missing_);
    return 0;
  }
  is_autoload_done_ = true;
  if (on_autoload) on_autoload();
  return 0;
}

}  // namespace bm::sim::amd
