#pragma once
// Inside of load_cubin(): from a checked ELF file to a ProgramImage.

#include <cstdint>
#include <map>
#include <string_view>
#include <vector>

#include "drivers/nv/cubin_info.h"
#include "drivers/nv/program.h"
#include "runtime/base/elf.h"
#include "runtime/base/result.h"

namespace bm::nv {

/// What the file says about the architecture of its code.
struct Container {
  uint32_t sm = 0;
  bool is_sm_specific = false;
};

/// State of one load. Sections are included as relocations reach them, then laid out, then patched.
class CubinLoader {
 public:
  CubinLoader(const elf::File& file, const Container& container) : file_(file) {
    info().sm = container.sm;
    info().is_sm_specific = container.is_sm_specific;
  }

  Result<ProgramImage> load(std::string_view kernel);

 private:
  using Field = ProgramImage::Field;
  struct Patch {
    uint32_t section = 0;  ///< patched
    uint32_t symbol = 0;
    uint64_t offset = 0;  ///< in `section`
    uint64_t addend = 0;
    Field field = Field::kWord64;
  };

  KernelInfo& info() { return result_.kernel_; }
  Status find_kernel(std::string_view kernel);
  Status read_module_info();
  Status read_kernel_info();
  void apply(const InfoRecord& record);
  void reserve_calls();
  void limit_threads();
  Status read_shared();
  Status include(uint32_t section);
  Status include_banks();
  Status follow_relocations();
  Status follow(const elf::Section& table);
  Result<Patch> patch_of(const elf::Section& table, const elf::Relocation& relocation) const;
  Result<uint64_t> addend_of(const elf::Section& table, const Patch& patch) const;
  Status check_symbol(const elf::Section& table, const Patch& patch);
  Status lay_out();
  Status place(uint32_t section, uint64_t alignment);
  Status add_fixup(const Patch& patch);
  uint32_t index_of(const elf::Section& section) const {
    return static_cast<uint32_t>(&section - file_.sections().data());
  }

  const elf::File& file_;
  uint32_t symbol_ = 0;  ///< the kernel's
  uint32_t text_ = 0;    ///< its section
  std::vector<uint32_t> included_;
  std::map<uint32_t, uint64_t> place_;            ///< section → offset in the image
  std::map<uint32_t, uint32_t> bank_of_section_;  ///< section → bank
  std::vector<Patch> patches_;
  ProgramImage result_;
};

}  // namespace bm::nv
