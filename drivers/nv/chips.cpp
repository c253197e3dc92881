#include "drivers/nv/chips.h"

#include <algorithm>
#include <array>

#include <fmt/ranges.h>

namespace bm::nv {
namespace {

// Classes per chip: open-gpu-kernel-modules 595.45.04, g_gpu_class_list.c. SM versions:
// ctrl2080gr.h, NV2080_CTRL_GR_INFO_SM_VERSION_*. Descriptor versions: open-gpu-doc, class headers
// clXXc0qmd.h. Shared memory splits: CUDA C++ Programming Guide, table of compute capabilities.

constexpr uint32_t kTuringUsermode[] = {0xc461, 0xc361};
constexpr uint32_t kAmpereUsermode[] = {0xc561, 0xc461, 0xc361};
constexpr uint32_t kHopperUsermode[] = {0xc661, 0xc561, 0xc461, 0xc361};
constexpr uint32_t kBlackwellBUsermode[] = {0xc761, 0xc661, 0xc561, 0xc461, 0xc361};

constexpr uint32_t kTuringChannel[] = {0xc46f, 0xc36f};
constexpr uint32_t kAmpereChannel[] = {0xc56f, 0xc46f};
constexpr uint32_t kHopperChannel[] = {0xc86f, 0xc56f};
constexpr uint32_t kBlackwellAChannel[] = {0xc96f, 0xc86f, 0xc56f};
constexpr uint32_t kBlackwellBChannel[] = {0xca6f, 0xc96f, 0xc86f, 0xc56f};

constexpr uint32_t kTuringCopy[] = {0xc5b5};
constexpr uint32_t kAmpereACopy[] = {0xc6b5};
constexpr uint32_t kAmpereBCopy[] = {0xc7b5};
constexpr uint32_t kHopperCopy[] = {0xc8b5};
constexpr uint32_t kBlackwellACopy[] = {0xc9b5};
constexpr uint32_t kBlackwellBCopy[] = {0xcab5, 0xc9b5};

constexpr SmName kTuringSm[] = {{0x705, 75}};
constexpr SmName kAmpereASm[] = {{0x800, 80}, {0x802, 80}};
constexpr SmName kAmpereBSm[] = {{0x806, 86}, {0x807, 87}, {0x808, 88}};
constexpr SmName kAdaSm[] = {{0x809, 89}};
constexpr SmName kHopperSm[] = {{0x900, 90}};
constexpr SmName kBlackwellASm[] = {{0xa00, 100}, {0xa01, 110}, {0xa03, 103}};
constexpr SmName kBlackwellBSm[] = {{0xa04, 120}, {0xc00, 120}, {0xc01, 121}};

constexpr uint16_t kShared64[] = {32, 64};
constexpr uint16_t kShared100[] = {8, 16, 32, 64, 100};
constexpr uint16_t kShared164[] = {8, 16, 32, 64, 100, 132, 164};
constexpr uint16_t kShared228[] = {8, 16, 32, 64, 100, 132, 164, 196, 228};

// Read off the machine code that ptxas 13.0.88 makes of kernels that read one special register each
// (LDC, LDCU, ULDC and operands in bank 0), for sm_75, 80, 86 … 89, 90, 100, 103, 110, 120 and 121;
// the figures are repeated, from that judge alone, in tests/unit/nv_faults/special_registers_test.
constexpr Bank0Layout kBank0Turing = {.block_dims = 0x0,
                                      .grid_dims = 0xc,
                                      .shared_window = 0x18,
                                      .local_window = 0x20,
                                      .stack_pointer = 0x28,
                                      .grid_id = 0x30,
                                      .sm_count = 0x10c,
                                      .dynamic_shared = 0x2c,
                                      .params = 0x160};
constexpr Bank0Layout kBank0Ampere = [] {
  Bank0Layout layout = kBank0Turing;
  layout.memory_descriptor = 0x118;
  layout.reserved_shared = 0x114;
  return layout;
}();
// From here on code takes the shared window from a special register.
constexpr Bank0Layout kBank0Hopper = {.block_dims = 0x0,
                                      .grid_dims = 0xc,
                                      .local_window = 0x20,
                                      .stack_pointer = 0x28,
                                      .grid_id = 0x30,
                                      .sm_count = 0x10c,
                                      .memory_descriptor = 0x208,
                                      .dynamic_shared = 0x2c,
                                      .reserved_shared = 0x114,
                                      .is_clustered = 0x140,
                                      .cluster_dims = 0x144,
                                      .cluster_inverse = 0x150,
                                      .cluster_grid = 0x15c,
                                      .cluster_size = 0x188,
                                      .params = 0x210};
constexpr Bank0Layout kBank0Blackwell = {.block_dims = 0x360,
                                         .grid_dims = 0x370,
                                         .local_window = 0x2f8,
                                         .stack_pointer = 0x37c,
                                         .grid_id = 0x140,
                                         .sm_count = 0x2d0,
                                         .memory_descriptor = 0x358,
                                         .dynamic_shared = 0x2ac,
                                         .reserved_shared = 0x16c,
                                         .is_clustered = 0x36c,
                                         .cluster_dims = 0x2a0,
                                         .cluster_inverse = 0x2b0,
                                         .cluster_grid = 0x2c0,
                                         .cluster_size = 0x2cc,
                                         .second_place = 0xa0,
                                         .params = 0x380};

// What makes the scheduler's cache read the descriptor anew. Mesa NVK launches with 3 from Ampere
// on (nvk_cmd_dispatch.c, nvk_cmd_dispatch_shader()), libcuda with 0xa on an H100; both were seen
// to work there (libmc). open-gpu-doc, clc6c0.h … clcec0.h: 3 is INVALIDATE_COPY_SCHEDULE, 0xa
// INVALIDATE_PREFETCH_COPY_SCHEDULE.
constexpr uint8_t kInvalidateCopy = 3, kInvalidatePrefetchCopy = 0xa;

constexpr std::string_view kAmpereToken = "channel 11:0, runlist 22:16";
constexpr std::string_view kBlackwellToken = "channel 11:0, runlist 22:16, by runlist 30";

constexpr ChipRow kChips[] = {
    {.name = "TU10x",
     .compute_class = 0xc5c0,
     .sm_first = 75,
     .sm_last = 75,
     .sm_names = kTuringSm,
     .usermode_classes = kTuringUsermode,
     .channel_classes = kTuringChannel,
     .copy_classes = kTuringCopy,
     .qmd = QmdVersion::k2_3,
     .qmd_compat = QmdVersion::k2_3,
     .launch = LaunchMethod::kPcasB,
     .launch_action = 0,
     .has_clusters = false,
     .push_va_bits = 40,
     .sem_va_bits = 40,
     .copy_payload64 = false,
     .sm_count_bits = 0xff,
     .shared_configs_kib = kShared64,
     .shared_reserved = 0,
     .static_shared_limit = 48 << 10,
     .bank0 = kBank0Turing,
     .token_note = kAmpereToken,
     .validated = false},
    {.name = "GA100",
     .compute_class = 0xc6c0,
     .sm_first = 80,
     .sm_last = 80,
     .sm_names = kAmpereASm,
     .usermode_classes = kAmpereUsermode,
     .channel_classes = kAmpereChannel,
     .copy_classes = kAmpereACopy,
     .qmd = QmdVersion::k3_0,
     .qmd_compat = QmdVersion::k3_0,
     .launch = LaunchMethod::kPcas2B,
     .launch_action = kInvalidateCopy,
     .has_clusters = false,
     .push_va_bits = 40,
     .sem_va_bits = 40,
     .copy_payload64 = false,
     .sm_count_bits = 0xff,
     .shared_configs_kib = kShared164,
     .shared_reserved = 1024,
     .static_shared_limit = 48 << 10,
     .bank0 = kBank0Ampere,
     .token_note = kAmpereToken,
     .validated = false},
    {.name = "GA10x",
     .compute_class = 0xc7c0,
     .sm_first = 86,
     .sm_last = 88,
     .sm_names = kAmpereBSm,
     .usermode_classes = kAmpereUsermode,
     .channel_classes = kAmpereChannel,
     .copy_classes = kAmpereBCopy,
     .qmd = QmdVersion::k3_0,
     .qmd_compat = QmdVersion::k3_0,
     .launch = LaunchMethod::kPcas2B,
     .launch_action = kInvalidateCopy,
     .has_clusters = false,
     .push_va_bits = 40,
     .sem_va_bits = 40,
     .copy_payload64 = true,
     .sm_count_bits = 0xff,
     .shared_configs_kib = kShared100,
     .shared_reserved = 1024,
     .static_shared_limit = 48 << 10,
     .bank0 = kBank0Ampere,
     .token_note = kAmpereToken,
     .validated = false},
    {.name = "AD10x",
     .compute_class = 0xc9c0,
     .sm_first = 89,
     .sm_last = 89,
     .sm_names = kAdaSm,
     .usermode_classes = kAmpereUsermode,
     .channel_classes = kAmpereChannel,
     .copy_classes = kAmpereBCopy,
     .qmd = QmdVersion::k3_0,
     .qmd_compat = QmdVersion::k3_0,
     .launch = LaunchMethod::kPcas2B,
     .launch_action = kInvalidateCopy,
     .has_clusters = false,
     .push_va_bits = 40,
     .sem_va_bits = 40,
     .copy_payload64 = true,
     .sm_count_bits = 0xff,
     .shared_configs_kib = kShared100,
     .shared_reserved = 1024,
     .static_shared_limit = 48 << 10,
     .bank0 = kBank0Ampere,
     .token_note = kAmpereToken,
     .validated = false},
    {.name = "GH100",
     .compute_class = 0xcbc0,
     .sm_first = 90,
     .sm_last = 90,
     .sm_names = kHopperSm,
     .usermode_classes = kHopperUsermode,
     .channel_classes = kHopperChannel,
     .copy_classes = kHopperCopy,
     .qmd = QmdVersion::k4_0,
     .qmd_compat = QmdVersion::k3_0,
     .launch = LaunchMethod::kPcas2B,
     .launch_action = kInvalidatePrefetchCopy,
     .has_clusters = true,
     .push_va_bits = 40,
     .sem_va_bits = 57,
     .copy_payload64 = true,
     .sm_count_bits = 0xff,
     .shared_configs_kib = kShared228,
     .shared_reserved = 1024,
     .static_shared_limit = 48 << 10,
     .bank0 = kBank0Hopper,
     .token_note = kAmpereToken,
     .validated = false},
    {.name = "GB10x",
     .compute_class = 0xcdc0,
     .sm_first = 100,
     .sm_last = 110,
     .sm_names = kBlackwellASm,
     .usermode_classes = kHopperUsermode,
     .channel_classes = kBlackwellAChannel,
     .copy_classes = kBlackwellACopy,
     .qmd = QmdVersion::k5_0,
     .qmd_compat = QmdVersion::k5_0,
     .launch = LaunchMethod::kPcas2B,
     .launch_action = kInvalidateCopy,
     .has_clusters = true,
     .push_va_bits = 40,
     .sem_va_bits = 57,
     .copy_payload64 = true,
     .sm_count_bits = 0xff,
     .shared_configs_kib = kShared228,
     .shared_reserved = 1024,
     .static_shared_limit = 48 << 10,
     .bank0 = kBank0Blackwell,
     .token_note = kAmpereToken,
     .validated = false},
    {.name = "GB20x",
     .compute_class = 0xcec0,
     .sm_first = 120,
     .sm_last = 121,
     .sm_names = kBlackwellBSm,
     .usermode_classes = kBlackwellBUsermode,
     .channel_classes = kBlackwellBChannel,
     .copy_classes = kBlackwellBCopy,
     .qmd = QmdVersion::k5_0,
     .qmd_compat = QmdVersion::k5_0,
     .launch = LaunchMethod::kPcas2B,
     .launch_action = kInvalidateCopy,
     .has_clusters = true,
     .push_va_bits = 40,
     .sem_va_bits = 57,
     .copy_payload64 = true,
     .sm_count_bits = 0xff,
     .shared_configs_kib = kShared100,
     .shared_reserved = 1024,
     .static_shared_limit = 48 << 10,
     .bank0 = kBank0Blackwell,
     .token_note = kBlackwellToken,
     .validated = false},
};

bool offers(std::span<const uint32_t> offered, uint32_t wanted) {
  return std::find(offered.begin(), offered.end(), wanted) != offered.end();
}

uint32_t first_offered(std::span<const uint32_t> preferred, std::span<const uint32_t> offered) {
  for (const uint32_t wanted : preferred)
    if (offers(offered, wanted)) return wanted;
  return 0;
}

}  // namespace

uint32_t ChipRow::sm_of(uint32_t rm_version) const {
  for (const SmName& known : sm_names)
    if (known.rm_version == rm_version) return known.sm;
  return sm_names.front().sm;
}

std::span<const ChipRow> chips() { return kChips; }

const ChipRow* find_chip(uint32_t compute_class) {
  for (const ChipRow& row : kChips)
    if (row.compute_class == compute_class) return &row;
  return nullptr;
}

const ChipRow* find_chip_by_sm(uint32_t sm) {
  for (const ChipRow& row : kChips)
    if (row.sm_first <= sm && sm <= row.sm_last) return &row;
  return nullptr;
}

Result<ClassChoice> choose_classes(std::span<const uint32_t> offered, std::string_view device) {
  ClassChoice choice;
  for (const ChipRow& row : kChips)
    if (offers(offered, row.compute_class)) choice.chip = &row;  // rows ascend: the newest stays
  std::string_view missing = "a compute class known here";
  if (choice.chip != nullptr) {
    const ChipRow& row = *choice.chip;
    choice.compute = row.compute_class;
    choice.usermode = first_offered(row.usermode_classes, offered);
    choice.channel = first_offered(row.channel_classes, offered);
    choice.copy = first_offered(row.copy_classes, offered);
    if (choice.usermode != 0 && choice.channel != 0 && choice.copy != 0) return choice;
    missing = choice.usermode == 0  ? "a doorbell (usermode) class"
              : choice.channel == 0 ? "a channel (GPFIFO) class"
                                    : "a copy engine class";
  }
  return fail(Code::kUnsupported,
              "{} does not offer {}; it offers classes {:x}. Known generations are in "
              "drivers/nv/chips.cpp",
              device, missing, fmt::join(offered, " "));
}

}  // namespace bm::nv
