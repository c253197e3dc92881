#pragma once
// The firmware files that drivers here were written for: what each is, and which Debian package
// brings it. The files themselves are never part of this repository.

#include <cstdint>
#include <span>
#include <string_view>

namespace bm::firmware {

/// One version of one file.
struct Row {
  std::string_view name;             ///< below the firmware folder: "amdgpu/gc_11_0_0_mec.bin"
  uint64_t size = 0;                 ///< bytes, uncompressed
  std::string_view sha256;           ///< 64 hexadecimal digits, uncompressed
  std::string_view licence;          ///< file of linux-firmware that holds its terms
  std::string_view package;          ///< Debian, component non-free-firmware
  std::string_view suite;            ///< of Debian: "bookworm-backports"
  std::string_view package_version;  ///< where this version was seen
};

/// Ordered by name, versions of a file oldest first.
std::span<const Row> manifest();
/// The versions of `name`; empty for files that no driver here asks for.
std::span<const Row> versions_of(std::string_view name);

}  // namespace bm::firmware
