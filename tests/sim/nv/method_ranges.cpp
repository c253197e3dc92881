#include "tests/sim/nv/method_ranges.h"

#include <array>
#include <span>

namespace bm::sim::nv {
namespace {

struct Range {
  uint16_t first, last;  ///< byte offsets, both included
};

// Source: open-gpu-doc c8607fe, classes/compute/clc5c0.h … clcec0.h: every #define of a method with
// fields, arrays expanded; first what all seven classes have, then what each adds.
constexpr std::array<Range, 38> kEveryCompute = {
    {{256, 272},     {304, 340},    {384, 400},   {432, 436},   {476, 488},   {496, 520},
     {528, 528},     {540, 572},    {580, 616},   {640, 648},   {664, 664},   {672, 676},
     {688, 700},     {716, 716},    {740, 748},   {784, 784},   {792, 1052},  {1280, 1340},
     {1936, 1940},   {1968, 1972},  {3476, 3476}, {3488, 3548}, {3556, 3556}, {4744, 4744},
     {4776, 4776},   {4912, 4920},  {5156, 5156}, {5416, 5416}, {5456, 5476}, {5492, 5500},
     {5784, 5784},   {6468, 6468},  {6700, 6716}, {6912, 6924}, {9720, 9724}, {9736, 9736},
     {13044, 13292}, {13312, 14332}}};
constexpr std::array<Range, 7> kTuringMethods = {{{0x194, 0x1ac},
                                                  {0x214, 0x218},
                                                  {0x270, 0x270},
                                                  {0x290, 0x290},
                                                  {0x29c, 0x29c},
                                                  {0x2a8, 0x2a8},
                                                  {0x540, 0x57c}}};
constexpr std::array<Range, 7> kGa100Methods = {{{0x194, 0x1ac},
                                                 {0x214, 0x218},
                                                 {0x270, 0x270},
                                                 {0x290, 0x290},
                                                 {0x29c, 0x29c},
                                                 {0x2a8, 0x2a8},
                                                 {0x2c0, 0x2c0}}};
constexpr std::array<Range, 14> kGa102Ada = {{{0x114, 0x124},
                                              {0x158, 0x168},
                                              {0x194, 0x1ac},
                                              {0x1ec, 0x1ec},
                                              {0x214, 0x218},
                                              {0x270, 0x270},
                                              {0x290, 0x290},
                                              {0x29c, 0x29c},
                                              {0x2a8, 0x2a8},
                                              {0x2c0, 0x2c0},
                                              {0x550, 0x574},
                                              {0x7fc, 0x7fc},
                                              {0xdec, 0xdec},
                                              {0x3800, 0x3ffc}}};
constexpr std::array<Range, 14> kHopperMethods = {{{0x114, 0x124},
                                                   {0x158, 0x168},
                                                   {0x194, 0x1ac},
                                                   {0x1ec, 0x1ec},
                                                   {0x214, 0x218},
                                                   {0x29c, 0x29c},
                                                   {0x2c0, 0x2c0},
                                                   {0x420, 0x49c},
                                                   {0x550, 0x574},
                                                   {0x7ac, 0x7ac},
                                                   {0x7b8, 0x7bc},
                                                   {0x7fc, 0x7fc},
                                                   {0xdec, 0xdec},
                                                   {0x3800, 0x3ffc}}};
constexpr std::array<Range, 18> kBlackwellMethods = {{{0x114, 0x124},
                                                      {0x158, 0x168},
                                                      {0x1ec, 0x1ec},
                                                      {0x20c, 0x20c},
                                                      {0x2c0, 0x2c0},
                                                      {0x420, 0x49c},
                                                      {0x550, 0x570},
                                                      {0x74c, 0x74c},
                                                      {0x75c, 0x75c},
                                                      {0x7ac, 0x7ac},
                                                      {0x7b8, 0x7bc},
                                                      {0x7fc, 0x7fc},
                                                      {0xdec, 0xdec},
                                                      {0xf10, 0xf10},
                                                      {0xffc, 0xffc},
                                                      {0x1458, 0x1464},
                                                      {0x1930, 0x1938},
                                                      {0x3800, 0x3ffc}}};

// Source: the same, classes/dma-copy/clc5b5.h … clcab5.h.
constexpr std::array<Range, 10> kEveryCopy = {{{0x100, 0x100},
                                               {0x140, 0x140},
                                               {0x240, 0x248},
                                               {0x254, 0x264},
                                               {0x300, 0x300},
                                               {0x400, 0x41c},
                                               {0x700, 0x720},
                                               {0x728, 0x73c},
                                               {0x744, 0x750},
                                               {0x1114, 0x1114}}};
constexpr std::array<Range, 2> kFromC7b5 = {{{0x21c, 0x224}, {0x24c, 0x24c}}};
constexpr std::array<Range, 4> kFromC8b5 = {
    {{0x500, 0x500}, {0x514, 0x518}, {0x530, 0x53c}, {0x6fc, 0x6fc}}};

bool is_in(std::span<const Range> ranges, uint32_t offset) {
  for (const Range& range : ranges)
    if (offset >= range.first && offset <= range.last) return true;
  return false;
}

std::span<const Range> compute_extras(uint32_t object_class) {
  switch (object_class) {
    case 0xc5c0: return kTuringMethods;
    case 0xc6c0: return kGa100Methods;
    case 0xc7c0:
    case 0xc9c0: return kGa102Ada;
    case 0xcbc0: return kHopperMethods;
    default: return kBlackwellMethods;
  }
}

}  // namespace

EngineKind engine_kind(uint32_t object_class) {
  switch (object_class) {
    case 0xc5c0:
    case 0xc6c0:
    case 0xc7c0:
    case 0xc9c0:
    case 0xcbc0:
    case 0xcdc0:
    case 0xcec0: return EngineKind::kCompute;
    case 0xc5b5:
    case 0xc6b5:
    case 0xc7b5:
    case 0xc8b5:
    case 0xc9b5:
    case 0xcab5: return EngineKind::kCopy;
    default: return EngineKind::kNone;
  }
}

bool has_method(uint32_t object_class, uint32_t offset) {
  switch (engine_kind(object_class)) {
    case EngineKind::kCompute:
      return is_in(kEveryCompute, offset) || is_in(compute_extras(object_class), offset);
    case EngineKind::kCopy:
      return is_in(kEveryCopy, offset) || (object_class >= 0xc7b5 && is_in(kFromC7b5, offset)) ||
             (object_class >= 0xc8b5 && is_in(kFromC8b5, offset));
    case EngineKind::kNone: break;
  }
  return false;
}

}  // namespace bm::sim::nv
