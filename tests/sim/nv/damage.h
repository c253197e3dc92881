#pragma once
// Faults that come by themselves: a submission is changed on its way in, as a flipped bit or a lost
// write would, or what it points to is; engines and interpreter find the rest.

#include <cstdint>
#include <span>
#include <string>

#include "tests/sim/nv/descriptor.h"
#include "tests/sim/nv/gpu.h"
#include "tests/sim/nv/gpu_memory.h"

namespace bm::sim::nv {

/// Counts launches that have what is to be damaged; at the planted one changes the descriptor, the
/// arguments in bank 0, or turns a knob. `words`: of the descriptor.
void damage_launch(Gpu& gpu, GpuMemory& memory, uint32_t major, std::span<uint32_t> words);
/// The program's text of the planted launch.
void damage_text(Gpu& gpu, std::string* text);

/// Counts a copy of `bytes`; changes where the planted one reads or writes.
void damage_copy(Gpu& gpu, const GpuMemory& memory, uint64_t* in, uint64_t* out, uint64_t bytes);

}  // namespace bm::sim::nv
