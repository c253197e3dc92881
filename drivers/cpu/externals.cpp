#include "drivers/cpu/externals.h"

#include <math.h>
#include <string.h>

#include <algorithm>
#include <bit>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <string_view>

namespace bm::cpu {
namespace {

// Picks the overload (C++ adds float and long double ones to the C names) and forgets the type.
template <class R, class... Args>
External bind(std::string_view name, R (*function)(Args...)) {
  return {name, reinterpret_cast<const void*>(function)};
}
External f64(std::string_view name, double (*function)(double)) { return bind(name, function); }
External f32(std::string_view name, float (*function)(float)) { return bind(name, function); }
External f64x2(std::string_view name, double (*function)(double, double)) {
  return bind(name, function);
}
External f32x2(std::string_view name, float (*function)(float, float)) {
  return bind(name, function);
}

// The compilers' runtime libraries differ in which of these they have: ours are always there.
__extension__ using int128 = __int128;
__extension__ using uint128 = unsigned __int128;
int128 divide(int128 a, int128 b) { return a / b; }
int128 modulo(int128 a, int128 b) { return a % b; }
uint128 divide_unsigned(uint128 a, uint128 b) { return a / b; }
uint128 modulo_unsigned(uint128 a, uint128 b) { return a % b; }
int128 multiply(int128 a, int128 b) {
  return static_cast<int128>(static_cast<uint128>(a) * static_cast<uint128>(b));
}

/// Called by kernels compiled with BM_CHECKED; {} in the text stands for the element.
void kernel_fault(const char* text, int64_t element) {
  const std::string_view all(text), mark("{}");
  const size_t place = std::min(all.find(mark), all.size());
  const std::string_view tail = all.substr(std::min(place + mark.size(), all.size()));
  std::fprintf(stderr, "bellmetal: %.*s%lld%.*s\n", static_cast<int>(place), text,
               static_cast<long long>(element), static_cast<int>(tail.size()), tail.data());
  std::abort();
}

#if defined(__x86_64__)
// 16-bit floats travel in vector registers; _Float16 has that calling convention, for bfloat16 too.
__extension__ using half = _Float16;
float extend_half(half value) { return static_cast<float>(value); }
double extend_half_to_double(half value) { return static_cast<double>(value); }
half truncate_to_half(float value) { return static_cast<half>(value); }
half truncate_double_to_half(double value) { return static_cast<half>(value); }

/// Round to nearest even; NaN stays a (quiet) NaN.
half truncate_to_bfloat(float value) {
  const auto bits = std::bit_cast<uint32_t>(value);
  const bool is_nan = (bits & 0x7fffffff) > 0x7f800000;
  const uint32_t rounded = is_nan ? bits | 0x400000 : bits + 0x7fff + ((bits >> 16) & 1);
  return std::bit_cast<half>(static_cast<uint16_t>(rounded >> 16));
}

/// Rounds once: the step to float keeps a sticky bit so that the second rounding sees no false tie.
half truncate_double_to_bfloat(double value) {
  auto narrow = static_cast<float>(value);
  if (static_cast<double>(narrow) != value && narrow - narrow == 0) {
    auto bits = std::bit_cast<uint32_t>(narrow);
    // Round to odd: truncate towards zero, then mark as inexact.
    if (fabs(static_cast<double>(narrow)) > fabs(value)) --bits;
    narrow = std::bit_cast<float>(bits | 1);
  }
  return truncate_to_bfloat(narrow);
}
#endif

}  // namespace

std::span<const External> externals() {
  static const External kTable[] = {
#if defined(__x86_64__)
      bind("__divti3", divide),
      bind("__extendhfdf2", extend_half_to_double),
      bind("__extendhfsf2", extend_half),
      bind("__modti3", modulo),
      bind("__multi3", multiply),
      bind("__truncdfbf2", truncate_double_to_bfloat),
      bind("__truncdfhf2", truncate_double_to_half),
      bind("__truncsfbf2", truncate_to_bfloat),
      bind("__truncsfhf2", truncate_to_half),
#else
      bind("__divti3", divide),
      bind("__modti3", modulo),
      bind("__multi3", multiply),
#endif
      bind("__udivti3", divide_unsigned),
      bind("__umodti3", modulo_unsigned),
      f64("acos", acos),
      f32("acosf", acosf),
      f64("acosh", acosh),
      f32("acoshf", acoshf),
      f64("asin", asin),
      f32("asinf", asinf),
      f64("asinh", asinh),
      f32("asinhf", asinhf),
      f64("atan", atan),
      f64x2("atan2", atan2),
      f32x2("atan2f", atan2f),
      f32("atanf", atanf),
      f64("atanh", atanh),
      f32("atanhf", atanhf),
      bind("bm_kernel_fault", kernel_fault),
      f64("cbrt", cbrt),
      f32("cbrtf", cbrtf),
      f64("ceil", ceil),
      f32("ceilf", ceilf),
      f64x2("copysign", copysign),
      f32x2("copysignf", copysignf),
      f64("cos", cos),
      f32("cosf", cosf),
      f64("cosh", cosh),
      f32("coshf", coshf),
      f64("erf", erf),
      f64("erfc", erfc),
      f32("erfcf", erfcf),
      f32("erff", erff),
      f64("exp", exp),
      f64("exp10", exp10),
      f32("exp10f", exp10f),
      f64("exp2", exp2),
      f32("exp2f", exp2f),
      f32("expf", expf),
      f64("expm1", expm1),
      f32("expm1f", expm1f),
      f64("fabs", fabs),
      f32("fabsf", fabsf),
      f64x2("fdim", fdim),
      f32x2("fdimf", fdimf),
      f64("floor", floor),
      f32("floorf", floorf),
      bind<double, double, double, double>("fma", fma),
      bind<float, float, float, float>("fmaf", fmaf),
      f64x2("fmax", fmax),
      f32x2("fmaxf", fmaxf),
      f64x2("fmin", fmin),
      f32x2("fminf", fminf),
      f64x2("fmod", fmod),
      f32x2("fmodf", fmodf),
      bind<double, double, int*>("frexp", frexp),
      bind<float, float, int*>("frexpf", frexpf),
      f64x2("hypot", hypot),
      f32x2("hypotf", hypotf),
      bind<double, double, int>("ldexp", ldexp),
      bind<float, float, int>("ldexpf", ldexpf),
      bind<long long, double>("llrint", llrint),
      bind<long long, float>("llrintf", llrintf),
      bind<long long, double>("llround", llround),
      bind<long long, float>("llroundf", llroundf),
      f64("log", log),
      f64("log10", log10),
      f32("log10f", log10f),
      f64("log1p", log1p),
      f32("log1pf", log1pf),
      f64("log2", log2),
      f32("log2f", log2f),
      f64("logb", logb),
      f32("logbf", logbf),
      f32("logf", logf),
      bind<long, double>("lrint", lrint),
      bind<long, float>("lrintf", lrintf),
      bind<long, double>("lround", lround),
      bind<long, float>("lroundf", lroundf),
      bind("memcmp", memcmp),
      bind("memcpy", memcpy),
      bind("memmove", memmove),
      bind("memset", memset),
      bind<double, double, double*>("modf", modf),
      bind<float, float, float*>("modff", modff),
      f64("nearbyint", nearbyint),
      f32("nearbyintf", nearbyintf),
      f64x2("nextafter", nextafter),
      f32x2("nextafterf", nextafterf),
      f64x2("pow", pow),
      f32x2("powf", powf),
      f64x2("remainder", remainder),
      f32x2("remainderf", remainderf),
      f64("rint", rint),
      f32("rintf", rintf),
      f64("round", round),
      f64("roundeven", roundeven),
      f32("roundevenf", roundevenf),
      f32("roundf", roundf),
      bind<double, double, int>("scalbn", scalbn),
      bind<float, float, int>("scalbnf", scalbnf),
      f64("sin", sin),
      bind("sincos", sincos),
      bind("sincosf", sincosf),
      f32("sinf", sinf),
      f64("sinh", sinh),
      f32("sinhf", sinhf),
      f64("sqrt", sqrt),
      f32("sqrtf", sqrtf),
      f64("tan", tan),
      f32("tanf", tanf),
      f64("tanh", tanh),
      f32("tanhf", tanhf),
      f64("tgamma", tgamma),
      f32("tgammaf", tgammaf),
      f64("trunc", trunc),
      f32("truncf", truncf),
  };
  return kTable;
}

const void* find_external(std::string_view name) {
  const auto table = externals();
  const auto found =
      std::lower_bound(table.begin(), table.end(), name,
                       [](const External& e, std::string_view n) { return e.name < n; });
  return found != table.end() && found->name == name ? found->address : nullptr;
}

}  // namespace bm::cpu
