#pragma once
// Which methods an engine class has.

#include <cstdint>

namespace bm::sim::nv {

enum class EngineKind : uint8_t { kNone, kCompute, kCopy };

EngineKind engine_kind(uint32_t object_class);
/// Whether the class defines a method at this byte offset (0x100 and above).
bool has_method(uint32_t object_class, uint32_t offset);

}  // namespace bm::sim::nv
