#pragma once
// Structures of the nvidia kernel driver's ioctls, laid out as the release at hand wants them.
//
// Source of every number: NVIDIA open-gpu-kernel-modules, tags 535.113.01 … 595.45.04 (structures
// compiled, see tools/abigen), and for 610 the layouts tinygrad publishes for 610.43.03.

#include <compare>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "runtime/base/result.h"

namespace bm::nv::abi {

#include "drivers/nv/abi/constants.gen.inc"
#include "drivers/nv/abi/structs.gen.inc"

/// A driver release: "580.159.04" is {580, 159, 4}.
struct Version {
  uint16_t major = 0, minor = 0, patch = 0;
  auto operator<=>(const Version&) const = default;
  std::string text() const;
};

/// Errors: kCorrupt for text that is not two or three numbers between dots.
Result<Version> parse_version(std::string_view text);

/// Where a field lies. `bytes` is 0 in releases without the field; texts and identifiers are one
/// element.
struct FieldPlace {
  uint16_t offset, bytes, count, stride;
};

struct Layout {
  StructId id;
  Version since;
  uint32_t size;  ///< bytes, exactly what controls and ioctls must pass
  std::span<const FieldPlace> fields;
};

/// Every layout of every release, by structure, then oldest first.
std::span<const Layout> layouts();
/// Newest release with known layouts.
Version newest_known();
inline constexpr Version kOldestKnown = {535, 0, 0};

/// The layouts of one release, chosen once.
class Abi {
 public:
  /// A release newer than every known one gets the newest layouts.
  /// Errors: kUnsupported for releases before 535.
  static Result<Abi> create(Version version);

  const Layout& layout(StructId id) const { return *layouts_[static_cast<size_t>(id)]; }
  const Version& version() const { return version_; }
  bool is_newer_than_known() const { return version_ > newest_known(); }

 private:
  explicit Abi(Version version) : version_(version), layouts_(kStructCount) {}
  Version version_;
  std::vector<const Layout*> layouts_;
};

/// Bytes behind a structure that stay zero: the kernel copies allocation parameters back in its own
/// size, which may be larger in a release not known here.
inline constexpr size_t kSlack = 4096;

/// One structure, zeroed, in the layout of a release.
class AnyParams {
 public:
  explicit AnyParams(const Layout& layout) : layout_(&layout), bytes_(layout.size + kSlack) {}

  void* data() { return bytes_.data(); }
  uint64_t address() const { return reinterpret_cast<uint64_t>(bytes_.data()); }
  uint32_t size() const { return layout_->size; }
  StructId id() const { return layout_->id; }
  bool has(uint8_t field) const { return layout_->fields[field].bytes != 0; }

 protected:
  void store(uint8_t field, uint64_t value, uint32_t index);
  uint64_t load(uint8_t field, uint32_t index) const;
  std::span<std::byte> piece(uint8_t field, uint32_t index);

 private:
  const Layout* layout_;
  std::vector<std::byte> bytes_;
};

/// `Params<UvmFree> free(abi); free.set(UvmFree::base, va);` Negative numbers pass as their two's
/// complement. A field the release lacks ignores what is set and reads as zero.
template <class S>
class Params : public AnyParams {
 public:
  using Field = typename S::Field;
  explicit Params(const Abi& abi) : AnyParams(abi.layout(S::kId)) {}

  Params& set(Field field, uint64_t value, uint32_t index = 0) {
    store(field, value, index);
    return *this;
  }
  uint64_t get(Field field, uint32_t index = 0) const { return load(field, index); }
  /// A text or identifier; empty where the release lacks it.
  std::span<std::byte> bytes(Field field, uint32_t index = 0) { return piece(field, index); }
  Params& set_bytes(Field field, std::span<const uint8_t> value, uint32_t index = 0) {
    const std::span<std::byte> to = piece(field, index);
    for (size_t i = 0; i < to.size() && i < value.size(); ++i) to[i] = std::byte{value[i]};
    return *this;
  }
};

}  // namespace bm::nv::abi
