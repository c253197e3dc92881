#pragma once
// Writes small cubins for tests: the container as CUDA 12 and as CUDA 13 make it, from a reading of
// their files (readelf), not from the loader.

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace bm::nv::testing {

using Bytes = std::vector<std::byte>;

/// Little-endian bytes of the values, one after the other.
template <class... T>
Bytes pack(T... values) {
  Bytes out;
  (
      [&] {
        const auto* raw = reinterpret_cast<const std::byte*>(&values);
        out.insert(out.end(), raw, raw + sizeof values);
      }(),
      ...);
  return out;
}

class CubinBuilder {
 public:
  struct Section {
    std::string name;
    uint32_t type = 1;   // SHT_PROGBITS
    uint64_t flags = 2;  // SHF_ALLOC
    Bytes bytes;
    uint64_t nobits = 0;  // size of a section without contents
    uint32_t info = 0;
    uint64_t alignment = 4;
    uint64_t entry = 0;
    bool links_symbols = false;
  };

  /// CUDA 13: abi 8, sm in bits 15:8. CUDA 12: abi 7, sm in bits 7:0 and 23:16.
  CubinBuilder(uint32_t sm, bool is_cuda_12);

  uint32_t add(Section section);  ///< its index
  uint32_t add_symbol(std::string name, uint32_t section, uint64_t value, uint8_t info,
                      uint8_t other = 0);
  struct Relocation {
    uint64_t offset = 0;
    uint32_t symbol = 0, type = 0;
    int64_t addend = 0;
  };
  void add_relocations(uint32_t section, const std::vector<Relocation>& list, bool has_addends);
  Section& section(std::string_view name);
  uint32_t index(std::string_view name) const;
  uint32_t symbol(std::string_view name) const;
  void set_flags(uint32_t flags) { flags_ = flags; }
  void set_abi(uint8_t abi) { abi_ = abi; }

  Bytes build() const;

 private:
  struct Symbol {
    std::string name;
    uint32_t section = 0;
    uint64_t value = 0;
    uint8_t info = 0, other = 0;
  };
  uint32_t flags_ = 0;
  uint8_t abi_ = 8, os_abi_ = 0x41;
  std::vector<Section> sections_;
  std::vector<Symbol> symbols_;
};

/// .nv.info records.
Bytes info_sized(uint8_t attribute, const Bytes& payload);
Bytes info_value(uint8_t format, uint8_t attribute, uint16_t value);
Bytes join(std::initializer_list<Bytes> parts);

/// Module with kernels "first" (code 0x11…, 24 registers) and "second" (code 0x22…, 40 registers,
/// 3 barriers, 256 bytes of shared memory, 96 bytes of stack, constants in banks 2, 3 and 4,
/// globals with and without contents, a call to "helper" in a section of its own).
CubinBuilder sample_cubin(uint32_t sm, bool is_cuda_12);

}  // namespace bm::nv::testing
