// Integer, bit and comparison instructions.
#include "tests/unit/sim_ptx/op_case.h"

namespace bm::sim::ptx::test {
namespace {

__extension__ using Wide = __int128;
__extension__ using UnsignedWide = unsigned __int128;
using U = uint64_t;

template <class T>
struct Named;
template <>
struct Named<uint16_t> {
  static constexpr const char* kName = "u16";
};
template <>
struct Named<int16_t> {
  static constexpr const char* kName = "s16";
};
template <>
struct Named<uint32_t> {
  static constexpr const char* kName = "u32";
};
template <>
struct Named<int32_t> {
  static constexpr const char* kName = "s32";
};
template <>
struct Named<uint64_t> {
  static constexpr const char* kName = "u64";
};
template <>
struct Named<int64_t> {
  static constexpr const char* kName = "s64";
};

template <class T>
class PtxInteger : public testing::Test {
 public:
  static constexpr int kWidth = 8 * sizeof(T);
  static std::string with(const std::string& op, const std::string& operands) {
    return op + "." + Named<T>::kName + " " + operands + ";";
  }
  template <class F>
  static void two(const std::string& op, F f) {
    check_op({with(op, "$d, $a, $b"), {kWidth, kWidth, kWidth}, [f](U a, U b, U) {
                return static_cast<U>(f(static_cast<T>(a), static_cast<T>(b)));
              }});
  }
  template <class F>
  static void three(const std::string& op, F f) {
    check_op({with(op, "$d, $a, $b, $c"), {kWidth, kWidth, kWidth, kWidth}, [f](U a, U b, U c) {
                return static_cast<U>(f(static_cast<T>(a), static_cast<T>(b), static_cast<T>(c)));
              }});
  }
};
using Types = testing::Types<uint16_t, int16_t, uint32_t, int32_t, uint64_t, int64_t>;
TYPED_TEST_SUITE(PtxInteger, Types);

TYPED_TEST(PtxInteger, AddsSubtractsMultiplies) {
  using T = TypeParam;
  this->two("add", [](T a, T b) { return static_cast<Wide>(a) + b; });
  this->two("sub", [](T a, T b) { return static_cast<Wide>(a) - b; });
  this->two("mul.lo",
            [](T a, T b) { return static_cast<UnsignedWide>(a) * static_cast<UnsignedWide>(b); });
  this->two("mul.hi", [](T a, T b) {
    if (sizeof(T) == 8 && !std::is_signed_v<T>)
      return static_cast<Wide>((static_cast<UnsignedWide>(a) * static_cast<UnsignedWide>(b)) >> 64);
    return (static_cast<Wide>(a) * static_cast<Wide>(b)) >> (8 * sizeof(T));
  });
  this->three("mad.lo", [](T a, T b, T c) {
    return static_cast<UnsignedWide>(a) * static_cast<UnsignedWide>(b) +
           static_cast<UnsignedWide>(c);
  });
  this->three("mad.hi", [](T a, T b, T c) {
    const Wide high =
        sizeof(T) == 8 && !std::is_signed_v<T>
            ? static_cast<Wide>((static_cast<UnsignedWide>(a) * static_cast<UnsignedWide>(b)) >> 64)
            : (static_cast<Wide>(a) * static_cast<Wide>(b)) >> (8 * sizeof(T));
    return high + c;
  });
  this->three("sad", [](T a, T b, T c) {
    const Wide d = static_cast<Wide>(a) - b;
    return c + (d < 0 ? -d : d);
  });
}

TYPED_TEST(PtxInteger, DividesAndTakesExtremes) {
  using T = TypeParam;
  this->two("div", [](T a, T b) { return b == 0 ? Wide{-1} : static_cast<Wide>(a) / b; });
  this->two("rem",
            [](T a, T b) { return b == 0 ? static_cast<Wide>(a) : static_cast<Wide>(a) % b; });
  this->two("min", [](T a, T b) { return a < b ? a : b; });
  this->two("max", [](T a, T b) { return a > b ? a : b; });
  if constexpr (std::is_signed_v<T>) {
    constexpr int kBits = 8 * sizeof(T);
    check_op({this->with("neg", "$d, $a"), {kBits, kBits}, [](U a, U, U) { return U{0} - a; }});
    check_op({this->with("abs", "$d, $a"), {kBits, kBits}, [](U a, U, U) {
                return static_cast<T>(a) < 0 ? U{0} - a : a;
              }});
  }
}

TYPED_TEST(PtxInteger, ShiftsClampTheirAmount) {
  using T = TypeParam;
  constexpr int kBits = 8 * sizeof(T);
  check_op({this->with("shr", "$d, $a, $b"), {kBits, kBits, 32}, [](U a, U n, U) {
              T v = static_cast<T>(a);
              for (U i = 0; i < std::min<U>(n, 64); ++i) v = static_cast<T>(v >> 1);
              return static_cast<U>(v);
            }});
  check_op({"shl.b" + std::to_string(kBits) + " $d, $a, $b;", {kBits, kBits, 32}, [](U a, U n, U) {
              return n >= kBits ? 0 : a << n;
            }});
}

TYPED_TEST(PtxInteger, Compares) {
  using T = TypeParam;
  constexpr int kBits = 8 * sizeof(T);
  const auto compare = [&](const std::string& cmp, auto f) {
    check_op({this->with("setp." + cmp, "$d, $a, $b"), {1, kBits, kBits}, [f](U a, U b, U) {
                return U{f(static_cast<T>(a), static_cast<T>(b))};
              }});
  };
  compare("eq", [](T a, T b) { return a == b; });
  compare("ne", [](T a, T b) { return a != b; });
  compare("lt", [](T a, T b) { return a < b; });
  compare("le", [](T a, T b) { return a <= b; });
  compare("gt", [](T a, T b) { return a > b; });
  compare("ge", [](T a, T b) { return a >= b; });
  if constexpr (!std::is_signed_v<T>) {
    compare("lo", [](T a, T b) { return a < b; });
    compare("ls", [](T a, T b) { return a <= b; });
    compare("hi", [](T a, T b) { return a > b; });
    compare("hs", [](T a, T b) { return a >= b; });
  }
}

TEST(PtxInteger32, WideProductsKeepEverything) {
  check_op({"mul.wide.u16 $d, $a, $b;", {32, 16, 16}, [](U a, U b, U) { return a * b; }});
  check_op({"mul.wide.s16 $d, $a, $b;", {32, 16, 16}, [](U a, U b, U) {
              return static_cast<U>(int64_t{as<int16_t>(a)} * as<int16_t>(b));
            }});
  check_op({"mul.wide.u32 $d, $a, $b;", {64, 32, 32}, [](U a, U b, U) { return a * b; }});
  check_op({"mul.wide.s32 $d, $a, $b;", {64, 32, 32}, [](U a, U b, U) {
              return static_cast<U>(int64_t{as<int32_t>(a)} * as<int32_t>(b));
            }});
  check_op(
      {"mad.wide.u32 $d, $a, $b, $c;", {64, 32, 32, 64}, [](U a, U b, U c) { return a * b + c; }});
  check_op({"mad.wide.s32 $d, $a, $b, $c;", {64, 32, 32, 64}, [](U a, U b, U c) {
              return static_cast<U>(int64_t{as<int32_t>(a)} * as<int32_t>(b)) + c;
            }});
  check_op({"mul24.lo.u32 $d, $a, $b;", {32, 32, 32}, [](U a, U b, U) {
              return (a & 0xffffff) * (b & 0xffffff);
            }});
  check_op({"mad24.hi.s32 $d, $a, $b, $c;", {32, 32, 32, 32}, [](U a, U b, U c) {
              const auto cut = [](U v) {
                return int64_t{static_cast<int32_t>(as<uint32_t>(v) << 8)} / 256;
              };
              return static_cast<U>((cut(a) * cut(b)) >> 16) + c;
            }});
}

TEST(PtxInteger32, PairsOf16Bits) {
  const auto pair = [](const std::string& text, auto f) {
    check_op({text, {32, 32, 32}, [f](U a, U b, U) {
                const U low = f(a & 0xffff, b & 0xffff) & 0xffff,
                        high = f(a >> 16, b >> 16) & 0xffff;
                return low | (high << 16);
              }});
  };
  const auto s = [](U v) { return as<int16_t>(v); };
  pair("add.u16x2 $d, $a, $b;", [](U a, U b) { return a + b; });
  pair("min.u16x2 $d, $a, $b;", [](U a, U b) { return std::min(a, b); });
  pair("max.s16x2 $d, $a, $b;", [=](U a, U b) { return s(a) > s(b) ? a : b; });
  pair("min.relu.s16x2 $d, $a, $b;",
       [=](U a, U b) { return static_cast<U>(std::max<int>(std::min(s(a), s(b)), 0)); });
}

TEST(PtxInteger32, SaturatesWhenAsked) {
  const auto clamp = [](int64_t v) {
    return static_cast<U>(std::min<int64_t>(std::max<int64_t>(v, INT32_MIN), INT32_MAX));
  };
  check_op({"add.sat.s32 $d, $a, $b;", {32, 32, 32}, [=](U a, U b, U) {
              return clamp(int64_t{as<int32_t>(a)} + as<int32_t>(b));
            }});
  check_op({"sub.sat.s32 $d, $a, $b;", {32, 32, 32}, [=](U a, U b, U) {
              return clamp(int64_t{as<int32_t>(a)} - as<int32_t>(b));
            }});
}

TEST(PtxBits, LogicOfEveryWidth) {
  for (const int w : {16, 32, 64}) {
    const std::string b = ".b" + std::to_string(w);
    check_op({"and" + b + " $d, $a, $b;", {w, w, w}, [](U a, U c, U) { return a & c; }});
    check_op({"or" + b + " $d, $a, $b;", {w, w, w}, [](U a, U c, U) { return a | c; }});
    check_op({"xor" + b + " $d, $a, $b;", {w, w, w}, [](U a, U c, U) { return a ^ c; }});
    check_op({"not" + b + " $d, $a;", {w, w}, [](U a, U, U) { return ~a; }});
    check_op({"cnot" + b + " $d, $a;", {w, w}, [](U a, U, U) { return U{a == 0}; }});
    check_op(
        {"selp" + b + " $d, $a, $b, $c;", {w, w, w, 1}, [](U a, U c, U p) { return p ? a : c; }});
    check_op({"slct" + b + ".s32 $d, $a, $b, $c;", {w, w, w, 32}, [](U a, U c, U s) {
                return as<int32_t>(s) >= 0 ? a : c;
              }});
  }
  check_op({"and.pred $d, $a, $b;", {1, 1, 1}, [](U a, U b, U) { return a & b; }});
  check_op({"or.pred $d, $a, $b;", {1, 1, 1}, [](U a, U b, U) { return a | b; }});
  check_op({"xor.pred $d, $a, $b;", {1, 1, 1}, [](U a, U b, U) { return a ^ b; }});
  check_op({"not.pred $d, $a;", {1, 1}, [](U a, U, U) { return a ^ 1; }});
}

TEST(PtxBits, ThreeInputLogicByTable) {
  for (const uint32_t table : {0x80u, 0xe8u, 0x96u, 0x1bu, 0xcau, 0u, 0xffu})
    check_op({"lop3.b32 $d, $a, $b, $c, " + std::to_string(table) + ";",
              {32, 32, 32, 32},
              [=](U a, U b, U c) {
                U out = 0;
                for (int i = 0; i < 32; ++i) {
                  const U row = ((a >> i) & 1) * 4 + ((b >> i) & 1) * 2 + ((c >> i) & 1);
                  out |= ((table >> row) & U{1}) << i;
                }
                return out;
              }});
}

TEST(PtxBits, FunnelShifts) {
  const auto shift = [](const std::string& name, bool left, bool wrap) {
    check_op({"shf." + name + ".b32 $d, $a, $b, $c;", {32, 32, 32, 32}, [=](U low, U high, U n) {
                n = wrap ? n & 31 : std::min<U>(n, 32);
                const UnsignedWide both = (static_cast<UnsignedWide>(high) << 32) | low;
                return static_cast<U>(left ? (both << n) >> 32 : both >> n) & 0xffffffff;
              }});
  };
  shift("l.wrap", true, true);
  shift("l.clamp", true, false);
  shift("r.wrap", false, true);
  shift("r.clamp", false, false);
}

TEST(PtxBits, CountsAndFinds) {
  for (const int w : {32, 64}) {
    const std::string b = ".b" + std::to_string(w);
    check_op({"clz" + b + " $d, $a;", {32, w}, [w](U a, U, U) {
                U n = 0;
                while (n < static_cast<U>(w) && !((a >> (static_cast<U>(w) - 1 - n)) & 1)) ++n;
                return n;
              }});
    check_op({"popc" + b + " $d, $a;", {32, w}, [](U a, U, U) {
                U n = 0;
                for (; a; a &= a - 1) ++n;
                return n;
              }});
    check_op({"brev" + b + " $d, $a;", {w, w}, [w](U a, U, U) {
                U out = 0;
                for (int i = 0; i < w; ++i) out |= ((a >> i) & 1) << (w - 1 - i);
                return out;
              }});
    const auto find = [w](U a, bool is_signed) {
      if (is_signed && ((a >> (w - 1)) & 1)) a = ~a & (w == 64 ? ~U{0} : 0xffffffff);
      for (int i = w - 1; i >= 0; --i)
        if ((a >> i) & 1) return static_cast<U>(i);
      return U{0xffffffff};
    };
    const std::string u = std::to_string(w);
    check_op({"bfind.u" + u + " $d, $a;", {32, w}, [=](U a, U, U) { return find(a, false); }});
    check_op({"bfind.s" + u + " $d, $a;", {32, w}, [=](U a, U, U) { return find(a, true); }});
    check_op({"bfind.shiftamt.u" + u + " $d, $a;", {32, w}, [=](U a, U, U) {
                const U at = find(a, false);
                return at == 0xffffffff ? at : static_cast<U>(w) - 1 - at;
              }});
  }
}

/// Field positions and lengths are bytes: only small ones are interesting.
std::vector<uint64_t> field_patterns() {
  std::vector<uint64_t> out = {
      0, 1, 5, 8, 16, 31, 32, 33, 63, 64, 255, 0x1234, 0xdeadbeefcafef00dull, ~0ull};
  return out;
}
TEST(PtxBits, FieldsAreExtractedAndInserted) {
  for (const int w : {32, 64}) {
    for (const bool is_signed : {false, true}) {
      check_op(
          {"bfe." + std::string(is_signed ? "s" : "u") + std::to_string(w) + " $d, $a, $b, $c;",
           {w, w, 32, 32},
           [=](U a, U pos, U len) {
             pos &= 255, len &= 255;
             const U top = static_cast<U>(w) - 1;
             const U sign = is_signed && len ? (a >> std::min(pos + len - 1, top)) & 1 : 0;
             U out = 0;
             for (U i = 0; i <= top; ++i) {
               const U bit = i < len && pos + i <= top ? (a >> (pos + i)) & 1 : sign;
               out |= bit << i;
             }
             return out;
           },
           OpCase::Compare::kBits,
           nullptr,
           "sm_90",
           field_patterns()});
    }
    check_op({"bfi.b" + std::to_string(w) + " $d, $a, $b, 7, $c;",
              {w, w, w, 32},
              [=](U a, U b, U len) {
                for (U i = 0; i < (len & 255) && 7 + i < static_cast<U>(w); ++i)
                  b = (b & ~(U{1} << (7 + i))) | (((a >> i) & 1) << (7 + i));
                return b;
              },
              OpCase::Compare::kBits,
              nullptr,
              "sm_90",
              field_patterns()});
  }
}

TEST(PtxBits, PermutesBytes) {
  check_op({"prmt.b32 $d, $a, $b, $c;", {32, 32, 32, 32}, [](U a, U b, U c) {
              U out = 0;
              for (int i = 0; i < 4; ++i) {
                const U pick = (c >> (4 * i)) & 15, all = (b << 32) | a;
                U byte = (all >> (8 * (pick & 7))) & 255;
                if (pick & 8) byte = byte >= 128 ? 255 : 0;
                out |= byte << (8 * i);
              }
              return out;
            }});
  check_op({"prmt.b32.f4e $d, $a, $b, $c;", {32, 32, 32, 32}, [](U a, U b, U c) {
              return ((b << 32) | a) >> (8 * (c & 3));
            }});
  check_op({"prmt.b32.rc16 $d, $a, $b, $c;", {32, 32, 32, 32}, [](U a, U, U c) {
              const U half = c & 1 ? a >> 16 : a & 0xffff;
              return half | (half << 16);
            }});
}

TEST(PtxBits, DotProductsOfBytes) {
  check_op({"dp4a.s32.u32 $d, $a, $b, $c;", {32, 32, 32, 32}, [](U a, U b, U c) {
              for (int i = 0; i < 4; ++i)
                c += static_cast<U>(int64_t{as<int8_t>(a >> (8 * i))} * as<uint8_t>(b >> (8 * i)));
              return c;
            }});
  check_op({"dp4a.u32.s32 $d, $a, $b, $c;", {32, 32, 32, 32}, [](U a, U b, U c) {
              for (int i = 0; i < 4; ++i)
                c += static_cast<U>(int64_t{as<uint8_t>(a >> (8 * i))} * as<int8_t>(b >> (8 * i)));
              return c;
            }});
  check_op({"dp4a.s32.s32 $d, $a, $b, $c;", {32, 32, 32, 32}, [](U a, U b, U c) {
              for (int i = 0; i < 4; ++i)
                c += static_cast<U>(int64_t{as<int8_t>(a >> (8 * i))} * as<int8_t>(b >> (8 * i)));
              return c;
            }});
  check_op({"dp2a.hi.u32.s32 $d, $a, $b, $c;", {32, 32, 32, 32}, [](U a, U b, U c) {
              for (int i = 0; i < 2; ++i)
                c += static_cast<U>(int64_t{as<uint16_t>(a >> (16 * i))} *
                                    as<int8_t>(b >> (16 + 8 * i)));
              return c;
            }});
}

TEST(PtxBits, MasksAndExtensions) {
  const std::vector<uint64_t> small = {0, 1, 4, 8, 15, 16, 31, 32, 33, 63, 100, 0xffff8123};
  check_op({"bmsk.clamp.b32 $d, $a, $b;",
            {32, 32, 32},
            [](U a, U b, U) { return a > 31 ? 0 : ((b > 31 ? 0xffffffff : (U{1} << b) - 1) << a); },
            OpCase::Compare::kBits,
            nullptr,
            "sm_90",
            small});
  check_op({"szext.wrap.s32 $d, $a, $b;",
            {32, 32, 32},
            [](U a, U n, U) {
              n &= 31;
              if (n == 0) return U{0};
              const U kept = a & ((U{1} << n) - 1);
              return (kept >> (n - 1)) & 1 ? kept | (0xffffffff & ~((U{1} << n) - 1)) : kept;
            },
            OpCase::Compare::kBits,
            nullptr,
            "sm_90",
            small});
  check_op({"fns.b32 $d, $a, 3, 2;", {32, 32}, [](U a, U, U) {
              int left = 2;
              for (int i = 3; i < 32; ++i)
                if (((a >> i) & 1) && --left == 0) return static_cast<U>(i);
              return U{0xffffffff};
            }});
}

TEST(PtxCarry, ChainsReachAcrossWords) {
  // 128-bit sums, differences and products from 32- and 64-bit pieces, against the compiler's own.
  check_op({"add.cc.u64 %rd40, $a, $b; addc.u64 $d, $c, $a;", {64, 64, 64, 64}, [](U a, U b, U c) {
              return static_cast<U>((((static_cast<UnsignedWide>(c) << 64) | a) +
                                     ((static_cast<UnsignedWide>(a) << 64) | b)) >>
                                    64);
            }});
  check_op({"sub.cc.u32 %r40, $a, $b; subc.cc.u32 %r41, $c, $b; subc.u32 $d, $a, $c;",
            {32, 32, 32, 32},
            [](U a, U b, U c) {
              const auto wide = [](U high, U middle, U low) {
                return (static_cast<UnsignedWide>(high) << 64) |
                       (static_cast<UnsignedWide>(middle) << 32) | low;
              };
              return static_cast<U>((wide(a, c, a) - wide(c, b, b)) >> 64) & 0xffffffff;
            }});
  check_op({"mad.lo.cc.u32 %r40, $a, $b, $c; madc.hi.u32 $d, $a, $b, $c;",
            {32, 32, 32, 32},
            [](U a, U b, U c) { return (a * b + ((c << 32) | c)) >> 32; }});
  check_op({"mad.lo.cc.u32 %r40, $a, $b, $c; madc.lo.cc.u32 %r41, $b, $c, $a; addc.u32 $d, 0, 0;",
            {32, 32, 32, 32},
            [](U a, U b, U c) {
              const U first = (a * b & 0xffffffff) + c;
              const U second = (b * c & 0xffffffff) + a + (first >> 32);
              return second >> 32;
            }});
  check_op({"add.cc.s32 %r40, $a, $b; madc.hi.cc.s32 $d, $a, $b, $c;",
            {32, 32, 32, 32},
            [](U a, U b, U c) {
              const U high = static_cast<U>((int64_t{as<int32_t>(a)} * as<int32_t>(b)) >> 32);
              return high + c + ((a + b) >> 32);
            }});
}

TEST(PtxCompare, CombinesWithAPredicateAndItsComplement) {
  check_op({"setp.lt.and.s32 $d, $a, $b, $c;", {1, 32, 32, 1}, [](U a, U b, U c) {
              return U{as<int32_t>(a) < as<int32_t>(b) && c};
            }});
  check_op({"setp.ge.or.u64 $d, $a, $b, !$c;", {1, 64, 64, 1}, [](U a, U b, U c) {
              return U{a >= b || !c};
            }});
  check_op({"setp.eq.xor.b16 $d|%p8, $a, $b, $c;", {1, 16, 16, 1}, [](U a, U b, U c) {
              return (a == b) ^ c;
            }});
  check_op({"setp.eq.and.b32 %p7|$d, $a, $b, $c;", {1, 32, 32, 1}, [](U a, U b, U c) {
              return U{a != b} & c;
            }});
  check_op({"set.gt.u32.s32 $d, $a, $b;", {32, 32, 32}, [](U a, U b, U) {
              return as<int32_t>(a) > as<int32_t>(b) ? ~U{0} : 0;
            }});
  check_op({"set.le.or.f32.u32 $d, $a, $b, $c;", {32, 32, 32, 1}, [](U a, U b, U c) {
              return a <= b || c ? bits(1.0f) : 0;
            }});
}

}  // namespace
}  // namespace bm::sim::ptx::test
