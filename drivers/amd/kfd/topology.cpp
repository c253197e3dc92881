#include "drivers/amd/kfd/topology.h"

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <optional>

#include "runtime/base/bits.h"

namespace bm::amd::kfd {
namespace {

constexpr const char* kNodes = "/sys/devices/virtual/kfd/kfd/topology/nodes";
constexpr uint64_t kPage = 4096;
// HSA_MEM_HEAP_TYPE_FB_PUBLIC and _PRIVATE: video memory.
constexpr uint64_t kHeapPublic = 1, kHeapPrivate = 2;
constexpr uint64_t kXgmi = 11;  // CRAT_IOLINK_TYPE_XGMI
constexpr uint32_t kNavi10 = 100100;

template <class T>
std::optional<T> number(std::string_view text, int base = 10) {
  while (!text.empty() && (text.back() == '\n' || text.back() == ' ')) text.remove_suffix(1);
  if (base == 16 && (text.starts_with("0x") || text.starts_with("0X"))) text.remove_prefix(2);
  T value{};
  const auto [end, problem] = std::from_chars(text.data(), text.data() + text.size(), value, base);
  if (problem != std::errc() || end != text.data() + text.size() || text.empty())
    return std::nullopt;
  return value;
}

std::vector<std::string_view> lines_of(std::string_view text) {
  std::vector<std::string_view> lines;
  while (!text.empty()) {
    const size_t end = std::min(text.find('\n'), text.size());
    if (end != 0) lines.push_back(text.substr(0, end));
    text.remove_prefix(std::min(end + 1, text.size()));
  }
  return lines;
}

/// "key value" lines. Values the kernel prints in other forms are left out.
std::map<std::string, uint64_t> properties_of(std::string_view text) {
  std::map<std::string, uint64_t> properties;
  for (const std::string_view line : lines_of(text)) {
    const size_t blank = line.find(' ');
    if (blank == line.npos) continue;
    if (const auto value = number<uint64_t>(line.substr(blank + 1)))
      properties.emplace(line.substr(0, blank), *value);
  }
  return properties;
}

std::map<std::string, uint64_t> read_properties(System& system, const std::string& path) {
  std::string text;
  return system.read_file(path, &text) < 0 ? std::map<std::string, uint64_t>{}
                                           : properties_of(text);
}

uint64_t read_video_memory(System& system, const std::string& folder) {
  std::vector<std::string> banks;
  uint64_t bytes = 0;
  if (system.list(folder + "/mem_banks", &banks) < 0) return 0;
  for (const std::string& bank : banks) {
    const auto properties = read_properties(system, folder + "/mem_banks/" + bank + "/properties");
    const auto heap = properties.find("heap_type");
    const auto size = properties.find("size_in_bytes");
    if (heap == properties.end() || size == properties.end()) continue;
    if (heap->second == kHeapPublic || heap->second == kHeapPrivate) bytes += size->second;
  }
  return bytes;
}

std::vector<uint32_t> read_near_nodes(System& system, const std::string& folder) {
  std::vector<uint32_t> nodes;
  for (const char* kind : {"/io_links", "/p2p_links"}) {
    std::vector<std::string> links;
    if (system.list(folder + kind, &links) < 0) continue;
    for (const std::string& link : links) {
      const auto properties = read_properties(system, folder + kind + "/" + link + "/properties");
      const auto to = properties.find("node_to"), type = properties.find("type");
      const bool is_own = type != properties.end() && type->second == kXgmi;
      if (is_own && to != properties.end()) nodes.push_back(static_cast<uint32_t>(to->second));
    }
  }
  return nodes;
}

/// Nothing for CPU nodes and those this process must not see.
Result<std::optional<Node>> read_node(System& system, const std::string& folder, uint32_t index) {
  std::string text;
  if (const int failed = system.read_file(folder + "/gpu_id", &text); failed < 0) {
    if (failed == -EPERM || failed == -EACCES || failed == -ENOENT) return std::nullopt;
    return fail(code_from_errno(-failed), "{}/gpu_id: {}", folder, errno_text(-failed));
  }
  const auto gpu_id = number<uint32_t>(text);
  if (!gpu_id) return fail(Code::kCorrupt, "{}/gpu_id holds '{}'", folder, text);
  if (*gpu_id == 0) return std::nullopt;
  Node node;
  node.number = index;
  node.gpu_id = *gpu_id;
  if (const int failed = system.read_file(folder + "/properties", &text); failed < 0)
    return fail(code_from_errno(-failed), "{}/properties: {}", folder, errno_text(-failed));
  node.properties = properties_of(text);
  for (const char* key : {"gfx_target_version", "drm_render_minor", "simd_count", "simd_per_cu",
                          "array_count", "simd_arrays_per_engine"})
    if (node.get(key) == 0) return fail(Code::kCorrupt, "{}/properties has no {}", folder, key);
  if (system.read_file(folder + "/name", &text) == 0 && !text.empty())
    node.name = text.substr(0, text.find('\n'));
  node.video_memory = read_video_memory(system, folder);
  node.near_nodes = read_near_nodes(system, folder);
  return node;
}

}  // namespace

uint64_t Node::get(const std::string& key, uint64_t fallback) const {
  const auto at = properties.find(key);
  return at == properties.end() ? fallback : at->second;
}
uint32_t Node::xccs() const {
  return std::clamp<uint32_t>(static_cast<uint32_t>(get("num_xcc", 1)), 1, 8);
}
uint32_t Node::cus_per_xcc() const {
  const uint64_t cus = get("simd_count") / std::max<uint64_t>(get("simd_per_cu"), 1) / xccs();
  return static_cast<uint32_t>(std::clamp<uint64_t>(cus, 1, 4096));
}
uint32_t Node::engines_per_xcc() const {
  const uint64_t engines =
      get("array_count") / std::max<uint64_t>(get("simd_arrays_per_engine"), 1) / xccs();
  return static_cast<uint32_t>(std::clamp<uint64_t>(engines, 1, 64));
}

Result<std::vector<Node>> read_nodes(System& system) {
  std::vector<std::string> names;
  if (const int failed = system.list(kNodes, &names); failed < 0) {
    if (failed == -ENOENT)
      return fail(Code::kNotFound,
                  "{} is not there: the amdgpu kernel driver is not loaded (modprobe amdgpu), or "
                  "was built without CONFIG_HSA_AMD",
                  kNodes);
    return fail(code_from_errno(-failed), "{}: {}", kNodes, errno_text(-failed));
  }
  std::vector<uint32_t> numbers;
  for (const std::string& name : names)
    if (const auto index = number<uint32_t>(name)) numbers.push_back(*index);
  std::ranges::sort(numbers);
  std::vector<Node> nodes;
  for (const uint32_t index : numbers)
    if (auto node = BM_TRY(read_node(system, fmt::format("{}/{}", kNodes, index), index)))
      nodes.push_back(std::move(*node));
  return nodes;
}

Result<IpBlock> read_block(System& system, uint32_t render_minor, uint32_t hardware_id) {
  const std::string folder = fmt::format("/sys/class/drm/renderD{}/device/ip_discovery/die/0/{}/0",
                                         render_minor, hardware_id);
  IpBlock block;
  for (const auto& [name, field] :
       {std::pair{"major", &block.major}, {"minor", &block.minor}, {"revision", &block.revision}}) {
    std::string text;
    if (const int failed = system.read_file(folder + "/" + name, &text); failed < 0)
      return fail(Code::kNotFound, "{}/{}: {}", folder, name, errno_text(-failed));
    const auto value = number<uint32_t>(text);
    if (!value) return fail(Code::kCorrupt, "{}/{} holds '{}'", folder, name, text);
    *field = *value;
  }
  std::string text;
  if (const int failed = system.read_file(folder + "/base_addr", &text); failed < 0)
    return fail(Code::kNotFound, "{}/base_addr: {}", folder, errno_text(-failed));
  for (const std::string_view line : lines_of(text)) {
    const auto base = number<uint32_t>(line, 16);
    if (!base) return fail(Code::kCorrupt, "{}/base_addr holds '{}'", folder, line);
    block.bases.push_back(*base);
  }
  return block;
}

uint64_t SaveSizes::total(uint32_t xccs) const {
  return align_up((uint64_t{save} + debug) * xccs, kPage);
}

SaveSizes save_sizes(const Node& node, const ChipRow& chip) {
  constexpr uint32_t kHardwareRegisters = 0x1000, kLds = 0x10000, kHeader = 40;
  constexpr uint32_t kDebugPerWave = 32, kDebugAlign = 64;
  const uint32_t version = node.target_version();
  const uint32_t cus = node.cus_per_xcc();
  // The kernel caps older chips by arrays over all chiplets, not by those of one.
  const auto engines = static_cast<uint32_t>(
      node.get("array_count") / std::max<uint64_t>(node.get("simd_arrays_per_engine"), 1));
  const uint32_t waves = version < kNavi10 ? std::min(cus * 40, engines * 512) : cus * 32;
  const uint32_t lds =
      chip.lds_bytes > kLds ? static_cast<uint32_t>(node.get("lds_size_in_kb", 64)) << 10 : kLds;
  const uint32_t per_cu = chip.save.vgpr_bytes + chip.save.sgpr_bytes + lds + kHardwareRegisters;
  SaveSizes sizes;
  sizes.control_stack = std::min(align_up(kHeader + waves * chip.save.control_bytes_per_wave + 8,
                                          static_cast<uint32_t>(kPage)),
                                 chip.save.control_limit);
  sizes.save = sizes.control_stack + align_up(cus * per_cu, static_cast<uint32_t>(kPage));
  sizes.debug = align_up(waves * kDebugPerWave, kDebugAlign);
  // Kernels from 7.2 on tell; what they tell is what they compare with.
  if (const uint64_t told = node.get("ctl_stack_size"); told != 0)
    sizes.control_stack = static_cast<uint32_t>(told);
  if (const uint64_t told = node.get("cwsr_size"); told != 0)
    sizes.save = static_cast<uint32_t>(told);
  return sizes;
}

}  // namespace bm::amd::kfd
