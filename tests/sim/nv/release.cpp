#include "tests/sim/nv/release.h"

#include <array>
#include <charconv>

namespace bm::sim::nv {
namespace {

// Source: open-gpu-kernel-modules at the tag each row names, measured with sizeof and offsetof in a
// program that includes its alloc/alloc_channel.h, nvos.h, ctrl/*.h, class/*.h and uvm_ioctl.h.
// 610 is not published as source: its row is the 595 one with the differences of tinygrad's
// published bindings of 610.43.03 (a handle inserted at 32 of NV_CHANNEL_ALLOC_PARAMS).
// The device answers: alloc_free.c, resservResourceFactory(), which checks since 550; before, what
// the real 535 modules answer in a guest (tests/vm).
constexpr RmStatus kOld = RmStatus::kInvalidClass, kState = RmStatus::kInvalidState,
                   kArgument = RmStatus::kInvalidArgument;
constexpr std::array kReleases = {
    Release{535, "535.113.01", 360, 32,   64,   128, 120, 48,  1200, 32,  24, 16,
            28,  24,           2,   kOld, kOld, 256, 776, 132, 644,  436, 516},
    Release{545, "545.29.06", 360, 32,   64,   128, 128, 48,  1200, 32,  24, 16,
            28,  24,          2,   kOld, kOld, 256, 776, 132, 644,  444, 524},
    Release{550, "550.54.14", 360, 32,     64,        128, 128, 48,  9264, 256, 24, 16,
            28,  24,          2,   kState, kArgument, 256, 776, 132, 700,  444, 524},
    Release{560, "560.35.03", 360, 32,     64,        128, 128,  48,  9264, 256, 24, 16,
            28,  24,          2,   kState, kArgument, 256, 1032, 132, 404,  460, 524},
    Release{570, "570.86.16", 368, 32,     64,        128, 128,  48,  9264, 256, 24, 16,
            28,  24,          2,   kState, kArgument, 256, 1032, 132, 404,  460, 524},
    Release{575, "575.64.05", 368, 32,     64,        128, 128,  48,  9264, 256, 24, 16,
            28,  24,          3,   kState, kArgument, 256, 1032, 132, 404,  460, 532},
    Release{580, "580.142", 368, 32,     64,        128, 128,  56,  9264, 256,  24, 16,
            28,  24,        3,   kState, kArgument, 384, 1032, 132, 804,  1028, 564},
    Release{590, "590.48.01", 368, 32,     64,        128, 128,  56,  9264, 256,  16, 8,
            12,  8,           3,   kState, kArgument, 384, 1032, 132, 804,  1028, 564},
    Release{595, "595.45.04", 368, 32,     64,        128, 128,  56, 9264, 256,  16, 8,
            12,  8,           3,   kState, kArgument, 384, 1032, 68, 804,  1028, 564},
    Release{610, "610.43.03", 376, 36,     72,        136, 128,  56, 9264, 256,  16, 8,
            12,  8,           3,   kState, kArgument, 384, 1032, 68, 804,  1028, 580},
};

}  // namespace

const Release* find_release(std::string_view name) {
  int major = 0;
  std::from_chars(name.data(), name.data() + name.size(), major);
  for (const Release& release : kReleases)
    if (release.major == major) return &release;
  return nullptr;
}

}  // namespace bm::sim::nv
