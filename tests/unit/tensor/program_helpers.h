#pragma once
// Functions that expressions of program_ops.cpp call, over the public API alone. Each is also the
// text that reproductions hold.

#include <array>
#include <string>
#include <vector>

#include "tensor/tensor.h"

#define BM_HELPER(name, ...) \
  __VA_ARGS__                \
  inline constexpr const char* name = #__VA_ARGS__;

namespace bm::test {

/// A size that is no variable.
BM_HELPER(
    kFixedText, inline int64_t fixed(const SymInt& n) {
      if (!n.is_const()) raise(Code::kInvalidArgument, "{} is a variable", n.to_string());
      return n.constant();
    })

/// Which keys a query sees: those up to its own, `offset` further on, and of them the last ones.
BM_HELPER(
    kSeenText,
    inline Tensor seen(const Tensor& q, const Tensor& k, int64_t offset, int64_t window) {
      const std::string device(q.device().name());
      const Tensor key = Tensor::arange(k.size(-2), DType::kI64, device);
      const Tensor query = Tensor::arange(q.size(-2), DType::kI64, device).unsqueeze(-1) + offset;
      return (key <= query) & (key > query - window);
    })

/// Attention as decoders write it: queries [m, heads, d] in groups that share keys and values kv
/// [2, kv heads, n, d], scores within the cap.
BM_HELPER(
    kMixedText,
    inline Tensor mixed(const Tensor& q, const Tensor& kv, int64_t offset, double cap, DType wide) {
      const int64_t heads = fixed(q.size(1)), shared = fixed(kv.size(1));
      const Tensor k = kv.index({0}).cast(wide), v = kv.index({1}).cast(wide);
      const Tensor grouped =
          q.reshape({q.size(0), shared, heads / shared, q.size(2)}).permute({1, 2, 0, 3});
      Tensor scores = grouped.matmul(k.unsqueeze(1).transpose()) * 0.25;
      scores = (scores * (1 / cap)).tanh() * cap;
      scores = seen(grouped, k, offset, 1000).where(scores, -HUGE_VAL);
      return scores.softmax(-1).matmul(v.unsqueeze(1)).permute({2, 0, 1, 3});
    })

/// Rotary embedding of [..., m, d] by angles [m, d/2]: first half with second half.
BM_HELPER(
    kRotatedText, inline Tensor rotated(const Tensor& x, const Tensor& angles) {
      const int64_t half = fixed(x.size(-1)) / 2;
      const Tensor a = x.slice(-1, {0, half, 1}), b = x.slice(-1, {half, {}, 1});
      const Tensor c = angles.cos(), s = angles.sin();
      return Tensor::cat(std::array{a * c - b * s, b * c + a * s}, -1);
    })

/// The same, neighbor with neighbor.
BM_HELPER(
    kRotatedPairsText, inline Tensor rotated_pairs(const Tensor& x, const Tensor& angles) {
      const Tensor pairs = x.unflatten(-1, {fixed(x.size(-1)) / 2, 2});
      const Tensor a = pairs.slice(-1, {0, 1, 1}).squeeze(-1);
      const Tensor b = pairs.slice(-1, {1, 2, 1}).squeeze(-1);
      const Tensor c = angles.cos(), s = angles.sin();
      return Tensor::stack(std::array{a * c - b * s, b * c + a * s}, -1).flatten(-2);
    })

/// Weights [n, blocks · 2w] of four bits: codes [n, blocks, w] of two each, scales [n, blocks, 1].
BM_HELPER(
    kUnpackedText, inline Tensor unpacked(const Tensor& codes, const Tensor& scales) {
      const Tensor both = Tensor::cat(std::array{codes & 15, codes >> 4}, -1);
      return ((both.cast(scales.dtype()) - 8) * scales).flatten(1);
    })

/// Weights [n, blocks · 8w] of four bits in words [n, blocks, w] of eight each.
BM_HELPER(
    kUnpackedWordsText, inline Tensor unpacked_words(const Tensor& words, const Tensor& scales) {
      const Tensor shifts = Tensor::arange(8, DType::kU32, words.device().name()) * 4;
      const Tensor codes = ((words.unsqueeze(-1) >> shifts) & 15).flatten(-2);
      return ((codes.cast(scales.dtype()) - 8) * scales).flatten(1);
    })

/// Products of int8 vectors [m, blocks · w] with int8 weights [n, blocks, w], scales [n, blocks].
BM_HELPER(
    kBlockProductText,
    inline Tensor block_product(const Tensor& x, const Tensor& codes, const Tensor& scales) {
      const Tensor parts = x.unflatten(1, {codes.size(1), codes.size(2)}).unsqueeze(1);
      const Tensor sums =
          (parts.cast(DType::kI32) * codes.cast(DType::kI32)).sum({-1}, false, DType::kI32);
      return (sums.cast(scales.dtype()) * scales).sum({-1});
    })

/// Another device of the same kind, where there is one.
BM_HELPER(
    kBesideText, inline std::string beside(const Tensor& x) {
      const std::string name(x.device().name());
      return name == "CPU" || name.starts_with("CPU:L") || name.starts_with("CPU:C")
                 ? "CPU:1" + name.substr(3)
                 : name;
    })

inline constexpr std::array kHelpers{kFixedText,         kSeenText,         kMixedText,
                                     kRotatedText,       kRotatedPairsText, kUnpackedText,
                                     kUnpackedWordsText, kBlockProductText, kBesideText};

}  // namespace bm::test
