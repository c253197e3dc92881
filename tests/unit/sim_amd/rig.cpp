#include "tests/unit/sim_amd/one_wave.h"

#include <unistd.h>

#include <array>
#include <cstdlib>
#include <fstream>
#include <iterator>

#include <fmt/format.h>
#include <gtest/gtest.h>

namespace bm::sim::amd::test {
namespace {

struct Section {
  uint32_t name, type;
  uint64_t flags, address, offset, size;
  uint32_t link, info;
  uint64_t alignment, entry_size;
};
struct Symbol {
  uint32_t name;
  uint8_t info, other;
  uint16_t section;
  uint64_t value, size;
};

template <class T>
T read_at(const std::vector<uint8_t>& file, uint64_t offset) {
  T value{};
  if (offset + sizeof(T) <= file.size()) std::memcpy(&value, file.data() + offset, sizeof(T));
  return value;
}

/// Text and kernel descriptors of an ET_DYN that lld made, or of an ET_REL.
Object read_object(const std::vector<uint8_t>& file) {
  Object object;
  const auto table = read_at<uint64_t>(file, 0x28);
  const auto count = read_at<uint16_t>(file, 0x3c);
  std::vector<Section> sections;
  for (uint32_t i = 0; i < count; ++i)
    sections.push_back(read_at<Section>(file, table + i * sizeof(Section)));
  const auto names = read_at<uint16_t>(file, 0x3e);
  size_t text = 0;
  for (size_t i = 0; i < sections.size(); ++i) {
    const char* name =
        reinterpret_cast<const char*>(file.data() + sections[names].offset + sections[i].name);
    if (std::string(name) == ".text") text = i;
  }
  const auto bytes_of = [&](const Section& s) {
    return std::vector<uint8_t>(file.begin() + static_cast<ptrdiff_t>(s.offset),
                                file.begin() + static_cast<ptrdiff_t>(s.offset + s.size));
  };
  object.text = bytes_of(sections[text]);
  std::vector<std::pair<std::string, Symbol>> symbols;
  for (const Section& s : sections) {
    if (s.type != 2) continue;  // SHT_SYMTAB
    for (uint64_t at = 0; at < s.size; at += sizeof(Symbol)) {
      const auto symbol = read_at<Symbol>(file, s.offset + at);
      symbols.emplace_back(
          reinterpret_cast<const char*>(file.data() + sections[s.link].offset + symbol.name),
          symbol);
    }
  }
  for (const auto& [name, symbol] : symbols) {
    if (!name.ends_with(".kd")) continue;
    Kernel kernel;
    kernel.name = name.substr(0, name.size() - 3);
    const Section& home = sections[symbol.section];
    const uint64_t at = home.offset + (symbol.value - home.address);
    kernel.descriptor.assign(file.begin() + static_cast<ptrdiff_t>(at),
                             file.begin() + static_cast<ptrdiff_t>(at + 64));
    for (const auto& [entry_name, entry] : symbols)
      if (entry_name == kernel.name) kernel.entry_offset = entry.value - sections[text].address;
    object.kernels.push_back(kernel);
  }
  return object;
}

}  // namespace

namespace {
std::vector<std::string>& names() {
  static std::vector<std::string> list;
  return list;
}
}  // namespace

void covers(std::string_view name) { names().emplace_back(name); }
const std::vector<std::string>& covered() { return names(); }

std::optional<std::string> find_tool(const char* name) {
  for (const std::string folder : {"/usr/bin/", "/usr/local/bin/", "/usr/lib/llvm-19/bin/"})
    if (access((folder + name).c_str(), X_OK) == 0) return folder + name;
  return std::nullopt;
}

std::optional<Object> compile(const std::string& source, const std::string& chip,
                              const std::string& options) {
  const auto clang = find_tool("clang-19");
  if (!clang) return std::nullopt;
  std::string folder = testing::TempDir() + "bm_amd_XXXXXX";
  if (!mkdtemp(folder.data())) return std::nullopt;
  std::ofstream(folder + "/k.cl") << source;
  const std::string command = fmt::format(
      "{} -x cl -cl-std=CL2.0 -Xclang -finclude-default-header -target amdgcn-amd-amdhsa -mcpu={} "
      "-nogpulib "
      "-mcode-object-version=5 {} -O2 -c {}/k.cl -o {}/k.o 2> {}/log",
      *clang, chip, options, folder, folder, folder);
  const int status = std::system(command.c_str());
  std::ifstream log(folder + "/log");
  const std::string said((std::istreambuf_iterator<char>(log)), {});
  EXPECT_EQ(status, 0) << said;
  std::ifstream file(folder + "/k.o", std::ios::binary);
  const std::vector<uint8_t> bytes((std::istreambuf_iterator<char>(file)), {});
  for (const char* name : {"/k.cl", "/k.o", "/log"}) unlink((folder + name).c_str());
  rmdir(folder.c_str());
  if (status != 0) return std::nullopt;
  return read_object(bytes);
}

tl::expected<Statistics, Fault> launch(FlatMemory& memory, const Object& object,
                                       const std::string& kernel, const std::string& chip,
                                       Extent3 grid, Extent3 group,
                                       const std::vector<uint64_t>& arguments) {
  Dispatch d;
  d.isa = *isa_of(chip);
  const uint64_t text = memory.put(object.text);
  for (const Kernel& k : object.kernels) {
    if (k.name != kernel) continue;
    const auto word = [&](size_t at) { return read_at<uint32_t>(k.descriptor, at); };
    const uint32_t properties = word(56) & 0xffff;
    d.entry = text + k.entry_offset;
    d.rsrc3 = word(44);
    d.rsrc1 = word(48);
    d.rsrc2 = word(52);
    d.lds_bytes = word(0);
    d.wave_size = properties & 1 << 10 ? 32 : 64;
    d.scratch_per_lane = word(4);
    if (d.scratch_per_lane) d.scratch_base = memory.allocate(d.scratch_per_lane * 1024u);
    const uint64_t kernarg = memory.put(arguments);
    // A dispatch packet, for kernels that ask how large their work-group is.
    std::vector<uint16_t> packet(32);
    packet[2] = static_cast<uint16_t>(group.x);
    packet[3] = static_cast<uint16_t>(group.y);
    packet[4] = static_cast<uint16_t>(group.z);
    const uint64_t packet_at = memory.put(packet);
    const uint32_t wanted = d.rsrc2 >> 1 & 31;
    const auto give = [&](uint64_t value) {
      d.user_sgprs.push_back(static_cast<uint32_t>(value));
      d.user_sgprs.push_back(static_cast<uint32_t>(value >> 32));
    };
    if (properties & 1) give(0), give(0);  // describes a stack; see kernels_test.cpp
    if (properties & 1 << 1) give(packet_at);
    if (properties & 1 << 2) give(0);
    if (properties & 1 << 3) give(kernarg);
    if (properties & 1 << 4) give(0);
    while (d.user_sgprs.size() < wanted) d.user_sgprs.push_back(0);
    d.grid = grid;
    d.group = group;
    d.max_instructions = 200'000'000;
    return run(d, memory);
  }
  ADD_FAILURE() << "no kernel " << kernel;
  return tl::unexpected(Fault{});
}

}  // namespace bm::sim::amd::test
