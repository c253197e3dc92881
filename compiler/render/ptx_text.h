#pragma once
// Virtual registers, operands and lines of PTX: what the renderer writes with. Private to
// render_ptx.cpp and ptx_values.cpp.

#include <array>
#include <map>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <fmt/format.h>

#include "compiler/program/program.h"

namespace bm::compiler::ptx {

/// Register files. Integers of up to 32 bits live in 32-bit registers as the number they are
/// (sign- or zero-extended), bfloat16 as its bits in such a register, bool as a predicate.
enum class File : uint8_t { kPred, kB16, kB32, kB64, kF32, kF64 };
inline constexpr size_t kFiles = 6;

struct FileInfo {
  std::string_view prefix, type;  ///< "%r", "b32"
};
const FileInfo& info(File file);

/// File of a value in memory order; narrow 64-bit integers are the renderer's business.
File file_of(DType t);
/// Type of loads and stores: "u8", "s16", "f32"; float16 and bfloat16 are u16.
std::string_view memory_type(DType t);
/// Type of arithmetic, after extension: "s32", "u64", "f32".
std::string_view arithmetic_type(DType t, bool is_narrow);
/// Immediate operand for a constant that is not bool: number, 0f… or 0d… bits.
std::string literal(DType t, int64_t imm);

/// Text of one kernel body and the registers it uses.
class Writer {
 public:
  std::string fresh(File file);
  std::string fresh_label() { return fmt::format("$L{}", labels_++); }
  template <class... A>
  void line(fmt::format_string<A...> f, A&&... args) {
    out_ += '\t';
    fmt::format_to(std::back_inserter(out_), f, std::forward<A>(args)...);
    out_ += '\n';
  }
  void label(std::string_view name) { out_ += fmt::format("{}:\n", name); }
  /// Declarations of all registers made so far.
  std::string declarations() const;
  const std::string& text() const { return out_; }

 private:
  std::string out_;
  std::array<uint32_t, kFiles> used_{};
  uint32_t labels_ = 0;
};

}  // namespace bm::compiler::ptx
