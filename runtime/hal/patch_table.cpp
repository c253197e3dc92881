#include "runtime/hal/patch_table.h"

#include <algorithm>
#include <limits>
#include <tuple>

namespace bm::hal {
namespace {

bool has_field(const Command& command, const Patch& patch) {
  const auto* dispatch = std::get_if<Dispatch>(&command);
  const bool has_value = std::holds_alternative<Wait>(command) ||
                         std::holds_alternative<Signal>(command) ||
                         std::holds_alternative<Write>(command);
  switch (patch.field) {
    case PatchField::kKernarg: {
      if (dispatch == nullptr) return false;
      const CodeObject& code = dispatch->program->code();
      return patch.word < code.num_buffers + code.num_vars;
    }
    case PatchField::kGridX:
    case PatchField::kGridY:
    case PatchField::kGridZ: return dispatch != nullptr;
    case PatchField::kCopyDst:
    case PatchField::kCopySrc:
    case PatchField::kCopyBytes: return std::holds_alternative<Copy>(command);
    case PatchField::kSignalAddress: return has_value || std::holds_alternative<Timestamp>(command);
    case PatchField::kSignalValue: return has_value;
  }
  __builtin_unreachable();
}

Status check(std::span<const Command> commands, const Patch& patch) {
  if (patch.command >= commands.size() || patch.slot == std::numeric_limits<uint32_t>::max())
    return fail(Code::kInvalidArgument, "patch of command {} of {}, slot {}", patch.command,
                commands.size(), patch.slot);
  if (has_field(commands[patch.command], patch)) return {};
  return fail(
      Code::kInvalidArgument, "patch field {} (word {}) does not exist in command {} (kind {})",
      static_cast<int>(patch.field), patch.word, patch.command, commands[patch.command].index());
}

auto place(const Patch& p) {
  return std::tuple(p.command, p.field, p.field == PatchField::kKernarg ? p.word : 0);
}

}  // namespace

Result<PatchTable> PatchTable::build(std::span<const Command> commands,
                                     std::span<const Patch> patches) {
  PatchTable table;
  for (const Patch& patch : patches) BM_TRY(check(commands, patch));
  std::vector<Patch>& all = table.patches_;
  all.assign(patches.begin(), patches.end());
  std::ranges::sort(all, [](const Patch& a, const Patch& b) { return place(a) < place(b); });
  for (size_t i = 1; i < all.size(); ++i)
    // Only changed slots are applied, so the later of two would not always win.
    if (place(all[i - 1]) == place(all[i]))
      return fail(Code::kInvalidArgument, "slots {} and {} both patch command {}", all[i - 1].slot,
                  all[i].slot, all[i].command);
  std::ranges::sort(all, [](const Patch& a, const Patch& b) {
    return a.slot != b.slot ? a.slot < b.slot : place(a) < place(b);
  });
  const uint32_t slots = all.empty() ? 0 : all.back().slot + 1;
  table.last_.resize(slots);
  table.first_.assign(slots + 1, 0);
  for (const Patch& patch : all) ++table.first_[patch.slot + 1];
  for (size_t i = 1; i < table.first_.size(); ++i) table.first_[i] += table.first_[i - 1];
  return table;
}

}  // namespace bm::hal
