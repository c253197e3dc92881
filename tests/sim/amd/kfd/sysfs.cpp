#include "tests/sim/amd/kfd/sysfs.h"

#include <algorithm>
#include <cstdlib>

#include <fmt/format.h>

namespace bm::sim::amd {
namespace {

// simd_count and array_count are of all chiplets together; the rows are for one.
constexpr Card kCards[] = {
    {"gfx942", 90402, 152, 4, 4, 1, 8, 32, {9, 4, 3}, {7, 9, 0}, 0x80000, 8},
    {"gfx1030", 100300, 160, 2, 8, 2, 16, 32, {10, 3, 0}, {2, 3, 0}, 0x40000, 12},
    {"gfx1100", 110000, 192, 2, 12, 2, 16, 32, {11, 0, 0}, {4, 3, 0}, 0x60000, 12},
    {"gfx1102", 110002, 64, 2, 4, 2, 16, 32, {11, 0, 2}, {4, 3, 1}, 0x40000, 12},
    {"gfx1201", 120001, 128, 2, 8, 2, 16, 32, {12, 0, 1}, {6, 3, 1}, 0x60000, 12},
};

uint32_t round_up(uint32_t value, uint32_t to) { return (value + to - 1) / to * to; }

}  // namespace

const Card* find_card(const std::string& chip) {
  for (const Card& card : kCards)
    if (chip == card.chip) return &card;
  return nullptr;
}

const Card& card_of(const std::string& chip) {
  const Card* const card = find_card(chip);
  if (card == nullptr) abort();
  return *card;
}

Sizes sizes_of(const Card& card, uint32_t xccs) {
  const uint32_t cus = card.simds / card.simds_per_cu;
  const bool is_old = card.target_version < 100100;
  const uint32_t waves =
      is_old ? std::min(cus * 40, card.arrays * xccs / card.arrays_per_engine * 512) : cus * 32;
  const uint32_t per_cu = card.vgpr_bytes + 0x4000 + 0x10000 + 0x1000;
  Sizes sizes{};
  sizes.control_stack = round_up(40 + waves * card.wave_bytes + 8, 4096);
  // "HW design limits" of generation 10, whatever its number of compute units.
  if (card.target_version / 10000 == 10)
    sizes.control_stack = std::min(sizes.control_stack, 28672u);
  sizes.save = sizes.control_stack + round_up(cus * per_cu, 4096);
  sizes.debug = round_up(waves * 32, 64);
  return sizes;
}

uint32_t gpu_id_of(uint32_t gpu) { return 0x4a10 + gpu * 7; }
uint32_t render_minor_of(uint32_t gpu) { return 128 + gpu; }

std::map<std::string, std::string> sysfs_of(const Options& options) {
  std::map<std::string, std::string> files;
  const Card& card = card_of(options.chip);
  const Sizes sizes = sizes_of(card, options.xccs);
  const std::string nodes = "/sys/devices/virtual/kfd/kfd/topology/nodes/";
  files[nodes + "0/gpu_id"] = "0\n";
  files[nodes + "0/name"] = "\n";
  files[nodes + "0/properties"] = "cpu_cores_count 8\nsimd_count 0\n";
  for (uint32_t gpu = 0; gpu < options.gpus; ++gpu) {
    // Two digits, so that sorting by text would be wrong.
    const std::string node = nodes + fmt::format("{}", gpu + (gpu == 0 ? 2 : 9));
    files[node + "/gpu_id"] = fmt::format("{}\n", gpu_id_of(gpu));
    files[node + "/name"] = "navi model\n";
    std::string text = fmt::format(
        "cpu_cores_count 0\nsimd_count {}\nmem_banks_count 1\nmax_waves_per_simd {}\n"
        "lds_size_in_kb 64\nwave_front_size {}\narray_count {}\nsimd_arrays_per_engine {}\n"
        "cu_per_simd_array 8\nsimd_per_cu {}\nmax_slots_scratch_cu {}\ngfx_target_version {}\n"
        "drm_render_minor {}\nnum_sdma_engines 2\nnum_xcc {}\nunique_id 12345\n",
        card.simds * options.xccs, card.waves_per_simd, card.target_version < 100000 ? 64 : 32,
        card.arrays * options.xccs, card.arrays_per_engine, card.simds_per_cu, card.scratch_slots,
        options.target_version != 0 ? options.target_version : card.target_version,
        render_minor_of(gpu), options.xccs);
    if (options.publishes_sizes)
      text += fmt::format("cwsr_size {}\nctl_stack_size {}\n", sizes.save, sizes.control_stack);
    files[node + "/properties"] = text;
    files[node + "/mem_banks/0/properties"] =
        fmt::format("heap_type {}\nsize_in_bytes {}\nflags 0\nwidth 384\n",
                    options.has_large_bar ? 1 : 2, options.vram_bytes);
    files[node + "/io_links/0/properties"] = "type 2\nnode_from 2\nnode_to 0\nweight 20\n";
    if (options.has_direct_links)
      for (uint32_t other = 0; other < options.gpus; ++other)
        if (other != gpu)
          files[node + fmt::format("/io_links/{}/properties", other + 1)] = fmt::format(
              "type 11\nnode_from 2\nnode_to {}\nweight 15\n", other + (other == 0 ? 2 : 9));
    const std::string die =
        fmt::format("/sys/class/drm/renderD{}/device/ip_discovery/die/0/", render_minor_of(gpu));
    const auto block = [&](uint32_t id, const uint32_t(&version)[3], const std::string& bases) {
      const std::string folder = die + fmt::format("{}/0/", id);
      files[folder + "major"] = fmt::format("{}\n", version[0]);
      files[folder + "minor"] = fmt::format("{}\n", version[1]);
      files[folder + "revision"] = fmt::format("{}\n", version[2]);
      files[folder + "base_addr"] = bases;
    };
    block(11, card.gc,
          card.target_version < 100000 ? "0x00002000\n0x0000A000\n0x02402C00\n"
                                       : "0x00001260\n0x0000A000\n0x02402C00\n");
    if (options.has_bus_block) block(108, card.bus, "0x00000000\n0x00000014\n0x00000D20\n");
  }
  return files;
}

}  // namespace bm::sim::amd
