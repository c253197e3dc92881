#pragma once
// Static roofline and occupancy: what a kernel's program costs a card that is not here, by the
// card's data sheet.

#include <cstdint>
#include <span>

namespace bm::compiler {

struct CardInfo;
struct Program;
struct Schedule;
struct TargetInfo;

/// What one launch executes, counted by walking the loops of its program.
struct ProgramCount {
  double groups = 0;           ///< launched
  double sub_group_slots = 0;  ///< instructions that one sub-group issues
  uint32_t sub_groups = 1;     ///< of a group
  double mma_ops = 0;  ///< operations of a sub-group's matrix instructions; a multiply-add: 2
  bool is_mma_int8 = false;
  bool is_mma_tf32 = false;
  bool has_int8_dots = false;
};

/// `vars`: values of the kernel's variables; empty: half of the largest. Indices of loops count
/// with their middle, conditions that this leaves open as true. Slots are those of the program;
/// what an assembler makes of them is about as many.
ProgramCount count_program(const Program& program, const Schedule& schedule,
                           const TargetInfo& target, std::span<const int64_t> vars);

/// Groups and sub-groups (warps, waves) that one compute unit has at the same time.
struct Occupancy {
  uint32_t groups = 0, waves = 0, max_waves = 0;
};
Occupancy occupancy(const TargetInfo& target, const CardInfo& card, uint32_t block,
                    uint32_t registers, uint64_t shared_bytes);

struct StaticRoof {
  double seconds = 0;         ///< predicted: the slowest of issue, matrix units and memory
  const char* bound_by = "";  ///< "issue", "matrix", "memory"
  /// Share of the roof: of the time in which the card could do these operations, on matrix units
  /// where the program's products are of a type that these take, and move these bytes.
  double of_roof = 0;
};
/// `flops`, `bytes`: of the launch, each element touched counted once.
StaticRoof static_roof(const ProgramCount& count, const CardInfo& card, uint32_t units,
                       double flops, double bytes);

}  // namespace bm::compiler
