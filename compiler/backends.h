#pragma once
// Backends: the ways from a loop program to what a device loads, one row each.

#include <cstddef>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "compiler/program/program.h"
#include "compiler/targets/target.h"
#include "runtime/base/result.h"
#include "runtime/hal/arch.h"

namespace bm::compiler {

/// What a renderer wrote, and what a CUDA program is made for ("sm_90a").
struct Source {
  std::string text;
  std::string cpu;
};

/// Devices that share a choice of backends.
enum class Family : uint8_t { kCpu, kOpenCl, kNvidia, kAmd };
Family family_of(const hal::Arch& arch);

struct Backend {
  std::string_view name;     ///< in keys of caches: a name of its own
  std::string_view setting;  ///< as a device's renderer is chosen: "LLVM" of "CPU:LLVM"
  Family family = Family::kCpu;
  /// Takes out of the target what the renderer cannot write; nullptr: it writes everything.
  void (*limit)(TargetInfo&) = nullptr;
  std::string (*render)(const Program&, const TargetInfo&) = nullptr;
  /// Errors: kNotFound (compiler not installed), kCompile with the log.
  Result<std::vector<std::byte>> (*assemble)(const Source&, const hal::Arch&) = nullptr;
  /// The same of several at once where that costs less, in their order; nullptr: it does not.
  Result<std::vector<std::vector<std::byte>>> (*assemble_all)(std::span<const std::string> texts,
                                                              const hal::Arch&) = nullptr;
  /// What of toolkits and settings the code depends on; nullptr: nothing. Mixed toolkits have given
  /// programs that a driver refuses, so their versions count. Those of LLVM and clang do not, on
  /// purpose: an object of an older one is as right, and a start from a full cache needs no
  /// compiler.
  std::string (*version)() = nullptr;
  /// An object as text for people.
  Result<std::string> (*disassemble)(std::span<const std::byte> image, const Source&,
                                     const hal::Arch&) = nullptr;
};

/// By family; the first row of each is what an empty setting means.
std::span<const Backend> backends();

/// The row for a device and its renderer setting. Where a toolkit is missing and the device's
/// driver takes text, the one that needs none (said once). Errors: kUnsupported naming those there
/// are.
Result<const Backend*> find_backend(const hal::Arch& arch, std::string_view setting);

/// What the backend can write for `arch`.
TargetInfo target_of(const hal::Arch& arch, const Backend& backend);

}  // namespace bm::compiler
