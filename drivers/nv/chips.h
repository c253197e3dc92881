#pragma once
// Generations of NVIDIA's compute engine: one row per compute class. A generation is data; nothing
// else asks which chip this is.

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>

#include "runtime/base/result.h"

namespace bm::nv {

/// Form of the launch descriptor (tables in methods/).
enum class QmdVersion : uint8_t { k2_3, k3_0, k4_0, k5_0 };

/// Compute method that schedules a launch descriptor.
enum class LaunchMethod : uint8_t {
  kPcasB,   ///< SEND_SIGNALING_PCAS_B 0x2bc: invalidate bit 0, schedule bit 1
  kPcas2B,  ///< SEND_SIGNALING_PCAS2_B 0x2c0: action in 3:0
};

/// A word of constant bank 0 that this generation does not read.
inline constexpr uint16_t kNoWord = 0xffff;

/// Where code compiled for the generation expects its launch facts in constant bank 0: byte
/// offsets, kNoWord where code never looks.
struct Bank0Layout {
  uint16_t block_dims = kNoWord;         ///< 3 × u32
  uint16_t grid_dims = kNoWord;          ///< 3 × u32
  uint16_t shared_window = kNoWord;      ///< u64 address of the generic window on shared memory
  uint16_t local_window = kNoWord;       ///< u64
  uint16_t stack_pointer = kNoWord;      ///< u32, initial value kInitialStackPointer
  uint16_t grid_id = kNoWord;            ///< u64, %gridid
  uint16_t sm_count = kNoWord;           ///< u32, %nsmid
  uint16_t memory_descriptor = kNoWord;  ///< u64 used by loads and stores; zero is the plain one
  uint16_t dynamic_shared = kNoWord;     ///< u32, %dynamic_smem_size
  uint16_t reserved_shared = kNoWord;    ///< u32, what %total_smem_size leaves out
  uint16_t is_clustered = kNoWord;       ///< u32, %is_explicit_cluster
  uint16_t cluster_dims = kNoWord;       ///< 3 × u32, %cluster_nctaid
  uint16_t cluster_inverse = kNoWord;    ///< 3 × float32: 1 / cluster_dims, to divide %ctaid with
  uint16_t cluster_grid = kNoWord;       ///< 3 × u32, %nclusterid
  uint16_t cluster_size = kNoWord;       ///< u32, %cluster_nctarank
  /// Code may look for dynamic_shared and the cluster's words this much lower: it asks special
  /// register 0x8a which of the two it is. 0: there is one place only.
  uint16_t second_place = 0;
  uint16_t params = 0;  ///< first kernel parameter
};

/// Code starts from this stack pointer: the top kStackReserve bytes of the 16 MiB local window
/// belong to the driver.
inline constexpr uint32_t kInitialStackPointer = 0xfffdc0;
inline constexpr uint32_t kStackReserve = 0x240;

/// What GR_GET_INFO index 12 says, and the target compilers know it as.
struct SmName {
  uint32_t rm_version;
  uint32_t sm;  ///< 90 for sm_90
};

struct ChipRow {
  std::string_view name;   ///< "GH100", "GA10x"
  uint32_t compute_class;  ///< 0xcbc0
  uint32_t sm_first, sm_last;
  std::span<const SmName> sm_names;  ///< the first is taken for versions not listed

  // Preference lists, newest first; the first one in the device's class list is taken.
  std::span<const uint32_t> usermode_classes;
  std::span<const uint32_t> channel_classes;
  std::span<const uint32_t> copy_classes;

  QmdVersion qmd;
  QmdVersion qmd_compat;  ///< older form to choose instead; equal to `qmd` where there is none
  LaunchMethod launch;
  uint8_t launch_action;   ///< of kPcas2B: SEND_SIGNALING_PCAS2_B_PCAS_ACTION_*
  bool has_clusters;       ///< thread block clusters; need `qmd`, not `qmd_compat`
  uint8_t push_va_bits;    ///< ring entries, push buffers, launch descriptors
  uint8_t sem_va_bits;     ///< host semaphores
  bool copy_payload64;     ///< copy engine releases 64-bit payloads
  uint16_t sm_count_bits;  ///< third word of SET_SHADER_LOCAL_MEMORY_NON_THROTTLED

  std::span<const uint16_t> shared_configs_kib;  ///< splits of L1 the hardware takes, ascending
  uint32_t shared_reserved;      ///< bytes of each block's shared memory kept by the hardware
  uint32_t static_shared_limit;  ///< bytes a plain target may declare
  Bank0Layout bank0;
  std::string_view token_note;  ///< layout of the work submit token, for traces
  bool validated;               ///< run on a card by us

  /// Most shared memory one block may have, in bytes.
  uint32_t max_shared_per_block() const {
    return shared_configs_kib.back() * 1024u - shared_reserved;
  }
  /// Target for GR_GET_INFO's version: 90 for 0x900.
  uint32_t sm_of(uint32_t rm_version) const;
};

/// Every generation, oldest first.
std::span<const ChipRow> chips();

/// Row of a compute class, or nullptr.
const ChipRow* find_chip(uint32_t compute_class);
/// Row whose sm range holds `sm`, or nullptr.
const ChipRow* find_chip_by_sm(uint32_t sm);

/// Classes to use on a device.
struct ClassChoice {
  const ChipRow* chip = nullptr;
  uint32_t usermode = 0, channel = 0, compute = 0, copy = 0;
};

/// Newest generation the list offers, and for each other kind the first of the row's preferences
/// that it offers.
/// Errors: kUnsupported naming `device` (any text that identifies the chip) and what it offers.
Result<ClassChoice> choose_classes(std::span<const uint32_t> offered, std::string_view device);

}  // namespace bm::nv
