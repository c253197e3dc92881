#include "drivers/nv/methods/push.h"

#include <algorithm>

namespace bm::nv {
namespace {

struct ClassMethods {
  uint32_t number;
  std::span<const Method> methods;
};

#include "drivers/nv/methods/methods.gen.inc"

// Methods below this go to the host whatever the subchannel, except SET_OBJECT.
constexpr uint32_t kFirstEngineMethod = 0x100;

uint32_t class_behind(const ChannelClasses& classes, Subchannel subchannel, uint32_t method) {
  if (method < kFirstEngineMethod) return classes.channel;
  switch (subchannel) {
    case Subchannel::kHost: return 0;
    case Subchannel::kCompute: return classes.compute;
    case Subchannel::kCopy: return classes.copy;
  }
  return 0;
}

}  // namespace

std::span<const Method> methods_of(uint32_t class_number) {
  for (const ClassMethods& row : kClasses)
    if (row.number == class_number) return row.methods;
  return {};
}

Status check_method(const ChannelClasses& classes, Subchannel subchannel, uint32_t method,
                    uint32_t word) {
  const uint32_t number = class_behind(classes, subchannel, method);
  const std::span<const Method> methods = methods_of(number);
  const auto found = std::ranges::find(methods, method, &Method::offset);
  if (found == methods.end())
    return fail(Code::kInvalidArgument, "class {:#x} (subchannel {}) has no method {:#x}", number,
                static_cast<uint32_t>(subchannel), method);
  if ((word & ~found->mask) != 0)
    return fail(Code::kInvalidArgument,
                "{} of class {:#x}: {:#x} has bits outside its fields {:#x}", found->name, number,
                word, found->mask);
  return {};
}

Status check_push(std::span<const uint32_t> words, const ChannelClasses& classes) {
  for (size_t at = 0; at < words.size();) {
    const uint32_t header = words[at++];
    const auto op = static_cast<PushOp>(header >> 29);
    const auto subchannel = static_cast<Subchannel>(header >> 13 & 7);
    const uint32_t method = (header & 0xfff) << 2, count = header >> 16 & kMaxPushCount;
    if (op == PushOp::kImmediate) {
      BM_TRY(check_method(classes, subchannel, method, count));
      continue;
    }
    if (op != PushOp::kIncrement && op != PushOp::kNonIncrement && op != PushOp::kIncrementOnce)
      return fail(Code::kCorrupt, "word {}: header {:#x} has no known opcode", at - 1, header);
    if (count > words.size() - at)
      return fail(Code::kCorrupt, "word {}: header {:#x} passes the end", at - 1, header);
    for (uint32_t i = 0; i < count; ++i, ++at) {
      uint32_t step = i;
      if (op == PushOp::kNonIncrement) step = 0;
      if (op == PushOp::kIncrementOnce) step = std::min(i, 1u);
      BM_TRY(check_method(classes, subchannel, method + 4 * step, words[at]));
    }
  }
  return {};
}

}  // namespace bm::nv
