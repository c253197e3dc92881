#include "tests/unit/nv/cubin_builder.h"

#include <algorithm>
#include <cstdlib>

namespace bm::nv::testing {
namespace {

constexpr uint32_t kNvInfo = 0x70000000, kNvCompat = 0x70000086;
constexpr uint8_t kGlobalFunction = 0x12, kLocalObject = 0x01, kLocalFunction = 0x02;

void append(Bytes& out, const Bytes& more) { out.insert(out.end(), more.begin(), more.end()); }

void pad(Bytes& out, uint64_t alignment) {
  while (out.size() % alignment != 0) out.push_back(std::byte{0});
}

uint32_t add_name(Bytes& table, std::string_view name) {
  const auto at = static_cast<uint32_t>(table.size());
  for (char c : name) table.push_back(static_cast<std::byte>(c));
  table.push_back(std::byte{0});
  return at;
}

}  // namespace

CubinBuilder::CubinBuilder(uint32_t sm, bool is_cuda_12)
    : flags_(is_cuda_12 ? sm << 16 | 0x500 | sm : 0x06000004 | sm << 8),
      abi_(is_cuda_12 ? 7 : 8),
      os_abi_(is_cuda_12 ? 0x33 : 0x41) {
  sections_.push_back({.name = "", .type = 0, .flags = 0, .bytes = {}});
  sections_.push_back({.name = ".shstrtab", .type = 3, .flags = 0, .bytes = {}, .alignment = 1});
  sections_.push_back({.name = ".strtab", .type = 3, .flags = 0, .bytes = {}, .alignment = 1});
  sections_.push_back(
      {.name = ".symtab", .type = 2, .flags = 0, .bytes = {}, .alignment = 8, .entry = 24});
  symbols_.push_back({});
}

uint32_t CubinBuilder::add(Section section) {
  sections_.push_back(std::move(section));
  return static_cast<uint32_t>(sections_.size() - 1);
}

uint32_t CubinBuilder::add_symbol(std::string name, uint32_t section, uint64_t value, uint8_t info,
                                  uint8_t other) {
  symbols_.push_back({std::move(name), section, value, info, other});
  return static_cast<uint32_t>(symbols_.size() - 1);
}

void CubinBuilder::add_relocations(uint32_t section, const std::vector<Relocation>& list,
                                   bool has_addends) {
  Bytes bytes;
  for (const Relocation& r : list) {
    append(bytes, pack(r.offset, uint64_t{r.symbol} << 32 | r.type));
    if (has_addends) append(bytes, pack(r.addend));
  }
  add({.name = (has_addends ? ".rela" : ".rel") + sections_[section].name,
       .type = has_addends ? 4u : 9u,
       .flags = 0x40,
       .bytes = bytes,
       .info = section,
       .alignment = 8,
       .entry = has_addends ? 24u : 16u,
       .links_symbols = true});
}

CubinBuilder::Section& CubinBuilder::section(std::string_view name) {
  return sections_[index(name)];
}

uint32_t CubinBuilder::index(std::string_view name) const {
  for (size_t i = 1; i < sections_.size(); ++i)
    if (sections_[i].name == name) return static_cast<uint32_t>(i);
  std::abort();
}

uint32_t CubinBuilder::symbol(std::string_view name) const {
  for (size_t i = 1; i < symbols_.size(); ++i)
    if (symbols_[i].name == name) return static_cast<uint32_t>(i);
  std::abort();
}

Bytes CubinBuilder::build() const {
  std::vector<Section> sections = sections_;
  Bytes names(1), strings(1), table;
  for (const Symbol& s : symbols_) {
    const uint32_t name = s.name.empty() ? 0 : add_name(strings, s.name);
    append(table,
           pack(name, s.info, s.other, static_cast<uint16_t>(s.section), s.value, uint64_t{0}));
  }
  std::vector<uint32_t> name_at;
  for (const Section& s : sections) name_at.push_back(s.name.empty() ? 0 : add_name(names, s.name));
  sections[1].bytes = names;
  sections[2].bytes = strings;
  sections[3].bytes = table;
  Bytes file(64), headers;
  for (size_t i = 0; i < sections.size(); ++i) {
    const Section& s = sections[i];
    pad(file, s.alignment);
    const uint64_t at = i == 0 ? 0 : file.size();
    append(file, s.bytes);
    const uint32_t link = i == 3 ? 2 : s.links_symbols ? 3 : 0;
    append(headers, pack(name_at[i], s.type, s.flags, uint64_t{0}, at,
                         s.nobits != 0 ? s.nobits : uint64_t{s.bytes.size()}, link, s.info,
                         s.alignment, s.entry));
  }
  pad(file, 8);
  const uint64_t header_at = file.size();
  append(file, headers);
  const Bytes header =
      pack(uint32_t{0x464c457f}, uint8_t{2}, uint8_t{1}, uint8_t{1}, os_abi_, abi_, uint8_t{0},
           uint16_t{0}, uint32_t{0}, uint16_t{2}, uint16_t{190}, uint32_t{1}, uint64_t{0},
           uint64_t{0}, header_at, flags_, uint16_t{64}, uint16_t{56}, uint16_t{0}, uint16_t{64},
           static_cast<uint16_t>(sections.size()), uint16_t{1});
  std::copy(header.begin(), header.end(), file.begin());
  return file;
}

Bytes info_sized(uint8_t attribute, const Bytes& payload) {
  return join({pack(uint8_t{4}, attribute, static_cast<uint16_t>(payload.size())), payload});
}

Bytes info_value(uint8_t format, uint8_t attribute, uint16_t value) {
  return pack(format, attribute, value);
}

Bytes join(std::initializer_list<Bytes> parts) {
  Bytes out;
  for (const Bytes& part : parts) append(out, part);
  return out;
}

CubinBuilder sample_cubin(uint32_t sm, bool is_cuda_12) {
  const bool has_rela = sm >= 90;
  const uint16_t base = sm < 90 ? 0x160 : sm < 100 ? 0x210 : 0x380;
  const uint64_t barrier_flags = is_cuda_12 ? 3 << 20 : 0;
  CubinBuilder b(sm, is_cuda_12);
  const uint32_t info = b.add({.name = ".nv.info", .type = kNvInfo, .flags = 0, .bytes = {}});
  if (!is_cuda_12)
    b.add({.name = ".nv.compat",
           .type = kNvCompat,
           .flags = 0,
           .bytes = join({info_value(2, 9, 0), info_value(2, 5, 5)})});
  const uint32_t info2 =
      b.add({.name = ".nv.info.second", .type = kNvInfo, .flags = 0x40, .bytes = {}});
  const uint32_t constant3 = b.add({.name = ".nv.constant3", .bytes = Bytes(20, std::byte{0x33})});
  const uint32_t constant4 = b.add({.name = ".nv.constant4", .bytes = Bytes(16), .alignment = 8});
  // "first" has a bank 2 too, and earlier in the file: it must not be taken for "second".
  b.add({.name = ".nv.constant2.first", .bytes = Bytes(64, std::byte{0x21})});
  b.add({.name = ".nv.constant2.second", .bytes = Bytes(8, std::byte{0x22})});
  const auto code = [&](std::string name, uint8_t fill, size_t size, uint64_t flags) {
    return b.add({.name = std::move(name),
                  .flags = 6 | flags,
                  .bytes = Bytes(size, static_cast<std::byte>(fill)),
                  .alignment = 128});
  };
  const uint32_t first = code(".text.first", 0x11, 256, 0);
  const uint32_t second = code(".text.second", 0, 384, barrier_flags);
  const uint32_t helper = code(".text.helper", 0x55, 128, 0);
  const uint32_t data = b.add({.name = ".nv.global.init",
                               .flags = 3,
                               .bytes = Bytes(24, std::byte{0x77}),
                               .alignment = 16});
  const uint32_t zeros = b.add(
      {.name = ".nv.global", .type = 8, .flags = 3, .bytes = {}, .nobits = 400, .alignment = 8});
  b.add({.name = ".nv.shared.second",
         .type = 8,
         .flags = 3,
         .bytes = {},
         .nobits = (sm >= 90 ? 0x400u : 0u) + 256,
         .alignment = 16});
  b.add({.name = ".nv.constant0.first", .bytes = Bytes(base)});
  b.add({.name = ".nv.constant0.second", .bytes = Bytes(base + 20u)});

  const uint32_t s1 = b.add_symbol("first", first, 0, kGlobalFunction, 0x10);
  const uint32_t s2 = b.add_symbol("second", second, 0, kGlobalFunction, 0x10);
  const uint32_t sh = b.add_symbol("helper", helper, 0, kGlobalFunction);
  const uint32_t sd = b.add_symbol("data", data, 8, kLocalObject);
  const uint32_t sz = b.add_symbol("zeros", zeros, 0, kLocalObject);
  b.add_symbol("table", constant3, 4, kLocalObject);
  b.add_symbol("$second$inner", second, 128, kLocalFunction);

  // The record of another function comes last.
  b.section(".nv.info").bytes =
      join({info_sized(0x2f, pack(s2, 40u)), info_sized(0x11, pack(s2, 64u)),
            info_sized(0x12, pack(s2, 96u)), info_sized(0x2f, pack(s1, 24u)),
            info_sized(0x12, pack(s1, 0u)), info_sized(0x12, pack(sh, 8u))});
  (void)info;
  b.section(".nv.info.second").bytes = join(
      {info_sized(0x17, pack(0u, uint16_t{1}, uint16_t{8}, 12u << 18)),
       info_sized(0x17, pack(0u, uint16_t{0}, uint16_t{0}, 8u << 18)), info_value(3, 0x1b, 0xff),
       is_cuda_12 ? Bytes{} : info_value(2, 0x4c, 3), info_sized(0x05, pack(128u, 2u, 1u)),
       info_value(3, 0x19, 20), info_sized(0x0a, pack(0u, base, uint16_t{20}))});
  (void)info2;

  b.add_relocations(constant4,
                    {{.offset = 0, .symbol = sd, .type = 2, .addend = 4},
                     {.offset = 8, .symbol = sz, .type = 2, .addend = 0}},
                    has_rela);
  if (!has_rela) b.section(".nv.constant4").bytes[0] = std::byte{4};
  b.add_relocations(second,
                    {{.offset = 0x10, .symbol = s2, .type = 0x38, .addend = 0x90},
                     {.offset = 0x20, .symbol = s2, .type = 0x39, .addend = 0x90},
                     {.offset = 0x30, .symbol = sh, .type = has_rela ? 0x4bu : 0x3au}},
                    true);
  return b;
}

}  // namespace bm::nv::testing
