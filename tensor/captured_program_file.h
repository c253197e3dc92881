#pragma once
// The file of a captured program. Layout, little endian: magic, format version, XXH3-64 of the
// rest, then texts, tables and contents as the struct below lists them, each length in front.
//
// Parsing is pure and bounded: it touches no device and allocates no more than the file holds.

#include <array>
#include <cstddef>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "compiler/ir/dtype.h"
#include "runtime/base/result.h"
#include "runtime/hal/arch.h"
#include "runtime/hal/program.h"
#include "tensor/node.h"

namespace bm {

struct ProgramImage {
  struct Device {
    std::string name;
    hal::Arch arch;  ///< vendor, name, cpu and features only
  };
  struct Variable {
    std::string name;
    int64_t min = 0, max = 0;
  };
  /// constant + Σ coefficient·variable.
  struct Size {
    int64_t constant = 0;
    std::vector<std::pair<uint32_t, int64_t>> terms;
  };
  using Sizes = std::vector<Size>;
  struct View {
    NodeKind kind = NodeKind::kReshape;
    Sizes shape, syms;
    std::vector<int64_t> ints;
  };
  struct Input {
    uint32_t device = 0, slot = 0;
    DType dtype = DType::kF32;
    Sizes shape, base_shape;
    std::vector<View> views;
  };
  struct Memory {
    enum class Kind : uint8_t {
      kWork,      ///< nothing of value between runs
      kContents,  ///< constants and state
    };
    Kind kind = Kind::kWork;
    uint32_t device = 0;
    uint64_t size = 0;
    std::span<const std::byte> contents;  ///< kContents: `size` bytes within the file
  };
  struct Arg {
    int32_t slot = -1;
    uint32_t memory = 0;  ///< when slot is negative
    uint64_t offset = 0, size = 0;
    bool is_written = false, is_read = true;
  };
  struct Call {
    std::string name;
    bool is_kernel = true;  ///< else a copy
    uint32_t device = 0, code = 0;
    std::vector<uint32_t> vars;
    std::vector<int64_t> constants;
    double flops = 0, bytes = 0;
    std::vector<Arg> args;
  };
  struct Output {
    uint8_t kind = 0;
    uint32_t index = 0;  ///< as CapturedProgram::Output
    uint32_t memory = 0;
    uint64_t offset = 0;
    DType dtype = DType::kF32;
    Sizes shape;
  };
  struct New {
    uint32_t device = 0;
    uint64_t size = 0;
    int32_t donor = -1;
  };

  uint8_t outputs_mode = 0;
  bool is_checked = false;
  uint32_t num_slots = 0;
  std::vector<Device> devices;
  std::vector<Variable> vars;
  std::vector<Input> inputs;
  std::vector<Memory> memory;
  std::vector<hal::CodeObject> codes;
  std::vector<Call> calls;
  std::vector<Output> outputs;
  std::vector<New> fresh;
};

/// The file's bytes.
std::vector<std::byte> write_image(const ProgramImage& image);
/// Everything is checked before anything is returned: checksum, ranges of every index, sizes,
/// offsets. `bytes` must outlive the image.
/// Errors: kCorrupt (no such file, damaged, cut short); kUnsupported (another format version).
Result<ProgramImage> parse_image(std::span<const std::byte> bytes);

}  // namespace bm
