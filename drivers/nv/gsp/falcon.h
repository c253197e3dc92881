#pragma once
// A falcon: a small processor with memories of its own for code and data, and beside it, on the
// GSP, a RISC-V core. Heavy-secured programs are loaded into it and run to their end.
// Source: nouveau, nvkm/falcon/{gm200,gp102,ga102,tu102}.c; nova-core, falcon.rs, falcon/hal/*.rs;
// open-gpu-kernel-modules 570.144, kernel_falcon_{tu102,ga102}.c,
// kernel_gsp_falcon_{tu102,ga102}.c.

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>

#include "drivers/nv/gsp/bus.h"
#include "drivers/nv/gsp/generation.h"
#include "runtime/base/result.h"

namespace bm::nv::gsp {

struct Mailboxes {
  uint32_t low = 0, high = 0;
};

/// A program that the falcon fetches and its boot ROM checks (GA10x and later).
struct DmaProgram {
  uint64_t code_address = 0;  ///< in system memory, a multiple of 256
  uint32_t code_bytes = 0;
  uint32_t code_at = 0;       ///< in code memory
  uint32_t code_virtual = 0;  ///< address it runs at; where it starts
  uint64_t data_address = 0;  ///< a multiple of 256
  uint32_t data_bytes = 0;
  uint32_t data_at = 0;
  uint32_t signature_in_data = 0, engine_mask = 0, ucode_id = 0;  ///< for the boot ROM
};

/// A program that the host writes into the falcon word by word (Turing, GA100). Parts are whole
/// words; code starts at multiples of 256.
struct PioProgram {
  std::span<const std::byte> code;  ///< not secure
  uint32_t code_at = 0;             ///< in code memory
  uint32_t code_virtual = 0;
  std::span<const std::byte> secure_code = {};
  uint32_t secure_at = 0;  ///< in code memory, and its virtual address
  std::span<const std::byte> data;
  uint32_t data_at = 0;
  uint32_t entry = 0;
};

class Falcon {
 public:
  /// `base`: byte offset of its registers. `name`: for messages.
  Falcon(Bus& bus, const Generation& generation, uint32_t base, std::string_view name)
      : bus_(bus), generation_(generation), base_(base), name_(name) {}

  /// Engine and memories, falcon core. Errors: kTimeout.
  Status reset();
  /// The RISC-V core is next to run. Errors: kTimeout.
  Status reset_into_riscv();

  Status load(const DmaProgram& program);
  Status load(const PioProgram& program);
  /// Lets it fetch by physical addresses.
  void allow_no_context();
  /// And from system memory through context `index`.
  void allow_system_memory(uint32_t index);
  uint32_t code_memory_bytes();

  /// Starts what is loaded, with these in its mailboxes, and waits until it halts: the mailboxes
  /// then. `what`: for messages. Errors: kTimeout.
  Result<Mailboxes> run(std::optional<uint32_t> low, std::optional<uint32_t> high,
                        uint64_t timeout_us, std::string_view what);
  void start();
  Status wait_halted(uint64_t timeout_us, std::string_view what);

  void write_mailboxes(uint64_t value);
  Mailboxes mailboxes();
  bool is_riscv_active();
  /// Errors: kTimeout.
  Status wait_riscv_active(uint64_t timeout_us);
  Register reg(const Register& relative) const { return relative.at(base_); }

 private:
  Status reset_engine();
  Status wait_scrubbed();
  Status copy(uint32_t to, uint32_t memory_offset, uint64_t base, uint32_t bytes, uint32_t command,
              std::string_view what);
  void write_code(std::span<const std::byte> code, uint32_t at, uint32_t virtual_address,
                  bool is_secure);

  Bus& bus_;
  const Generation& generation_;
  uint32_t base_;
  std::string name_;
};

}  // namespace bm::nv::gsp
