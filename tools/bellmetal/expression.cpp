#include "tools/bellmetal/expression.h"

#include <array>
#include <cctype>
#include <charconv>
#include <cmath>
#include <cstdlib>
#include <optional>
#include <vector>

#include "models/llama_matrix.h"
#include "models/quant.h"
#include "tensor/capture_scope.h"
#include "tensor/exception.h"
#include "tensor/rounded_activations.h"

namespace bm::cli {
namespace {

using Arguments = std::vector<Tensor>;

/// Functions of tensors; the numbers after them in a call arrive as `n`.
struct Function {
  const char* name;
  size_t tensors, numbers;  ///< how many of each; missing numbers are 0
  Tensor (*apply)(const Arguments& t, const std::vector<int64_t>& n);
};

using Numbers = std::vector<int64_t>;

/// x·Wᵀ for a quantised matrix W of that many rows.
Tensor quantised_linear(models::GgmlType type, const Tensor& x, int64_t rows) {
  if (x.rank() != 2 || rows < 1 || !x.size(1).is_const())
    raise(Code::kInvalidArgument, "vectors [count, columns] and a number of rows expected");
  const int64_t columns = x.size(1).constant();
  const auto row = models::ggml_row_bytes(type, static_cast<uint64_t>(columns));
  if (!row ||
      !models::Matrix::can_pack(type, static_cast<uint64_t>(rows), static_cast<uint64_t>(columns)))
    raise(Code::kInvalidArgument, "no quantised matrix has {} rows of {} columns", rows, columns);
  std::optional<CaptureScope::Suspension> outside;
  if (CaptureScope* capture = CaptureScope::current()) outside.emplace(*capture);
  const std::vector<std::byte> data(*row * static_cast<uint64_t>(rows));
  const models::Matrix matrix = models::Matrix::pack(type, data, rows, columns, x.device().name());
  outside.reset();
  return matrix.linear(models::QuantisedActivations(x));
}

/// Keys or values of a cache, of which so many are there: float32, int8 codes by the float16 scales
/// of their blocks. `t` [shared heads, capacity, width], `scales` [shared heads, capacity, blocks].
Tensor cached(const Tensor& t, const Tensor& scales, const SymInt& length) {
  const auto lines = [&](const Tensor& part) {
    return part.shrink({{0, part.size(0)}, {0, length}, {0, part.size(2)}}).cast(DType::kF32);
  };
  if (!scales.is_valid()) return lines(t);
  const int64_t heads = t.size(0).constant(), width = t.size(2).constant(),
                blocks = scales.size(2).constant();
  return (lines(t).reshape({heads, length, blocks, width / blocks}) * lines(scales).unsqueeze(3))
      .reshape({heads, length, width});
}

/// Attention of one token as models ask for it: queries [heads, width] and a cache of keys and
/// values [shared heads, capacity, width], of which as many are there as are known at launch: all.
/// `scales`: of keys and of values, if these are int8 codes.
Tensor decode_attention(const Tensor& q, const Tensor& k, const Tensor& v,
                        const std::array<Tensor, 2>& scales = {}) {
  if (q.rank() != 2 || k.rank() != 3 || v.rank() != 3 || q.size(0).constant() == 0 ||
      k.size(0).constant() == 0 || q.size(0).constant() % k.size(0).constant() != 0)
    raise(Code::kInvalidArgument,
          "queries [heads, width], keys and values [shared heads, capacity, width] expected");
  for (const Tensor& s : scales)
    if (s.is_valid() && (s.rank() != 3 || s.size(2).constant() < 1 ||
                         k.size(2).constant() % s.size(2).constant() != 0))
      raise(Code::kInvalidArgument, "scales [shared heads, capacity, blocks] expected");
  const int64_t heads = q.size(0).constant(), width = q.size(1).constant(),
                shared = k.size(0).constant(), capacity = k.size(1).constant();
  const Var length("keys", 1, std::max<int64_t>(capacity, 1));
  length.set(std::max<int64_t>(capacity, 1));
  const Tensor keys = cached(k, scales[0], length), values = cached(v, scales[1], length);
  const Tensor scores = q.reshape({1, shared, heads / shared, width})
                            .permute({1, 2, 0, 3})
                            .matmul(keys.unsqueeze(1).transpose()) *
                        (1 / std::sqrt(static_cast<double>(width)));
  return scores.softmax(-1).matmul(values.unsqueeze(1));
}

/// Attention of the last tokens of a prompt as models ask for it of devices with matrix
/// instructions: queries [count, heads, width], caches and scales as of decode_attention().
Tensor prompt_attention(const Tensor& q, const Tensor& k, const Tensor& v,
                        const std::array<Tensor, 2>& scales = {}) {
  if (q.rank() != 3 || k.rank() != 3 || v.rank() != 3 || k.size(0).constant() == 0 ||
      q.size(1).constant() % k.size(0).constant() != 0 ||
      k.size(1).constant() < q.size(0).constant())
    raise(
        Code::kInvalidArgument,
        "queries [count, heads, width], keys and values [shared heads, capacity, width] expected");
  const int64_t count = q.size(0).constant(), heads = q.size(1).constant(),
                width = q.size(2).constant(), shared = k.size(0).constant();
  const int64_t most = k.size(1).constant() - count;
  const Var position("position", 0, std::max<int64_t>(most, 1));
  position.set(most);
  const SymInt end = SymInt(position) + count;
  const std::string device = q.device().name();
  const auto factor = [&](const Tensor& t, const Tensor& scale) {
    const Tensor all = cached(t, scale, end);
    return (scale.is_valid() ? all.cast(DType::kF16).cast(DType::kF32) : all).unsqueeze(1);
  };
  const Tensor keys = factor(k, scales[0]), values = factor(v, scales[1]);
  const Tensor scores = rounded_activations(q, DType::kF16)
                            .reshape({count, shared, heads / shared, width})
                            .permute({1, 2, 0, 3})
                            .matmul(keys.transpose()) *
                        (1 / std::sqrt(static_cast<double>(width)));
  const Tensor query_at =
      (Tensor::arange(count, DType::kI64, device) + Tensor::value_of(position, device))
          .unsqueeze(1);
  const Tensor key_at = Tensor::arange(end, DType::kI64, device).unsqueeze(0);
  return (key_at <= query_at).where(scores, -HUGE_VAL).softmax(-1).cast(DType::kF16).matmul(values);
}

constexpr Function kFunctions[] = {
    {"relu", 1, 0, [](const Arguments& t, const Numbers&) { return t[0].relu(); }},
    {"exp", 1, 0, [](const Arguments& t, const Numbers&) { return t[0].exp(); }},
    {"log", 1, 0, [](const Arguments& t, const Numbers&) { return t[0].log(); }},
    {"sqrt", 1, 0, [](const Arguments& t, const Numbers&) { return t[0].sqrt(); }},
    {"abs", 1, 0, [](const Arguments& t, const Numbers&) { return t[0].abs(); }},
    {"sigmoid", 1, 0, [](const Arguments& t, const Numbers&) { return t[0].sigmoid(); }},
    {"silu", 1, 0, [](const Arguments& t, const Numbers&) { return t[0].silu(); }},
    {"gelu", 1, 0, [](const Arguments& t, const Numbers&) { return t[0].gelu(); }},
    {"tanh", 1, 0, [](const Arguments& t, const Numbers&) { return t[0].tanh(); }},
    {"f32", 1, 0, [](const Arguments& t, const Numbers&) { return t[0].cast(DType::kF32); }},
    {"f16", 1, 0, [](const Arguments& t, const Numbers&) { return t[0].cast(DType::kF16); }},
    {"i32", 1, 0, [](const Arguments& t, const Numbers&) { return t[0].cast(DType::kI32); }},
    {"sum", 1, 1, [](const Arguments& t, const Numbers& n) { return t[0].sum({n[0]}); }},
    {"mean", 1, 1, [](const Arguments& t, const Numbers& n) { return t[0].mean({n[0]}); }},
    {"max", 1, 1, [](const Arguments& t, const Numbers& n) { return t[0].max({n[0]}); }},
    {"argmax", 1, 1, [](const Arguments& t, const Numbers& n) { return t[0].argmax(n[0]); }},
    {"cumsum", 1, 1, [](const Arguments& t, const Numbers& n) { return t[0].cumsum(n[0]); }},
    {"topk", 1, 1, [](const Arguments& t, const Numbers& n) { return t[0].topk(n[0]).first; }},
    {"softmax", 1, 0, [](const Arguments& t, const Numbers&) { return t[0].softmax(); }},
    {"layernorm", 1, 0, [](const Arguments& t, const Numbers&) { return t[0].layer_norm(); }},
    {"rmsnorm", 1, 0, [](const Arguments& t, const Numbers&) { return t[0].rms_norm(); }},
    {"transpose", 1, 0,
     [](const Arguments& t, const Numbers&) { return t[0].transpose().contiguous(); }},
    {"linear", 2, 0, [](const Arguments& t, const Numbers&) { return t[0].linear(t[1]); }},
    {"take", 2, 0, [](const Arguments& t, const Numbers&) { return t[0].take(t[1]); }},
    {"conv", 2, 3,  // stride, padding, groups
     [](const Arguments& t, const Numbers& n) {
       return t[0].conv(t[1], {}, {std::max<int64_t>(n[0], 1)}, {n[1]}, {1},
                        std::max<int64_t>(n[2], 1));
     }},
    {"attention", 3, 0,
     [](const Arguments& t, const Numbers&) { return Tensor::attention(t[0], t[1], t[2]); }},
    {"decode", 3, 0,
     [](const Arguments& t, const Numbers&) { return decode_attention(t[0], t[1], t[2]); }},
    {"decode8", 5, 0,
     [](const Arguments& t, const Numbers&) {
       return decode_attention(t[0], t[1], t[2], {t[3], t[4]});
     }},
    {"prompt", 3, 0,
     [](const Arguments& t, const Numbers&) { return prompt_attention(t[0], t[1], t[2]); }},
    {"prompt8", 5, 0,
     [](const Arguments& t, const Numbers&) {
       return prompt_attention(t[0], t[1], t[2], {t[3], t[4]});
     }},
    {"q8linear", 1, 1,
     [](const Arguments& t, const Numbers& n) {
       return quantised_linear(models::GgmlType::kQ8_0, t[0], n[0]);
     }},
    {"q4linear", 1, 1, [](const Arguments& t, const Numbers& n) {
       return quantised_linear(models::GgmlType::kQ4_K, t[0], n[0]);
     }}};

class Parser {
 public:
  Parser(std::string_view text, std::string_view device, std::vector<Tensor>* unwritten)
      : text_(text), device_(device), unwritten_(unwritten) {}

  Result<Tensor> all() {
    Tensor t = BM_TRY(sum());
    if (at_ != text_.size()) return wrong("an operator or the end");
    return t;
  }

 private:
  std::string_view text_, device_;
  std::vector<Tensor>* unwritten_;
  size_t at_ = 0;
  int depth_ = 0;

  tl::unexpected<Error> wrong(std::string_view wanted) {
    return fail(Code::kInvalidArgument, "\"{}\": {} expected at character {}; {}", text_, wanted,
                at_ + 1, expression_help());
  }
  char peek() {
    while (at_ < text_.size() && text_[at_] == ' ') ++at_;
    return at_ < text_.size() ? text_[at_] : '\0';
  }
  bool take(char c) {
    if (peek() != c) return false;
    ++at_;
    return true;
  }
  std::string_view word() {
    peek();
    const size_t start = at_;
    while (at_ < text_.size() && std::isalnum(static_cast<unsigned char>(text_[at_]))) ++at_;
    return text_.substr(start, at_ - start);
  }

  Result<Tensor> sum() {
    Tensor left = BM_TRY(product());
    for (;;) {
      if (take('+'))
        left = left + BM_TRY(product());
      else if (take('-'))
        left = left - BM_TRY(product());
      else
        return left;
    }
  }
  Result<Tensor> product() {
    Tensor left = BM_TRY(primary());
    for (;;) {
      if (take('*'))
        left = left * BM_TRY(primary());
      else if (take('/'))
        left = left / BM_TRY(primary());
      else if (take('@'))
        left = left.matmul(BM_TRY(primary()));
      else
        return left;
    }
  }
  Result<Tensor> primary() {
    // A parenthesis is a call of this function: so many are more than anyone means.
    if (++depth_ > 100) return wrong("fewer parentheses");
    Result<Tensor> out = simple();
    --depth_;
    return out;
  }
  Result<Tensor> simple() {
    if (take('(')) {
      Tensor t = BM_TRY(sum());
      if (!take(')')) return wrong("\")\"");
      return t;
    }
    const char c = peek();
    if (std::isdigit(static_cast<unsigned char>(c)) || c == '.') return number();
    const size_t start = at_;
    const std::string_view name = word();
    if (take('[')) return input(name);
    if (take('(')) return call(name);
    at_ = start;
    return wrong("a number, an input such as f32[64, 64], or a function");
  }
  Result<Tensor> number() {
    const std::string rest(text_.substr(at_));
    char* end = nullptr;
    const double value = std::strtod(rest.c_str(), &end);
    if (end == rest.c_str()) return wrong("a number");
    at_ += static_cast<size_t>(end - rest.c_str());
    return Tensor(value);
  }
  Result<int64_t> integer() {
    peek();
    int64_t value = 0;
    const auto [end, error] =
        std::from_chars(text_.data() + at_, text_.data() + text_.size(), value);
    if (error != std::errc()) return wrong("a whole number");
    at_ = static_cast<size_t>(end - text_.data());
    return value;
  }
  Result<Tensor> input(std::string_view dtype) {
    Shape shape;
    if (!take(']')) do {
        const int64_t n = BM_TRY(integer());
        if (n < 0) return wrong("a size");
        shape.push_back(n);
      } while (take(','));
    if (!shape.empty() && !take(']')) return wrong("\"]\"");
    constexpr std::array kTypes = {DType::kF32, DType::kF16, DType::kBF16, DType::kF64, DType::kI8,
                                   DType::kU8,  DType::kI16, DType::kU16,  DType::kI32, DType::kU32,
                                   DType::kI64, DType::kU64, DType::kBool};
    constexpr std::array kNames = {"f32", "f16", "bf16", "f64", "i8",  "u8",  "i16",
                                   "u16", "i32", "u32",  "i64", "u64", "bool"};
    for (size_t i = 0; i < kTypes.size(); ++i)
      if (dtype == kNames[i]) {
        // An input has its contents before whatever records what is computed of it.
        std::optional<CaptureScope::Suspension> outside;
        if (CaptureScope* capture = CaptureScope::current()) outside.emplace(*capture);
        if (unwritten_ != nullptr)
          return unwritten_->emplace_back(Tensor::empty(shape, kTypes[i], device_));
        Tensor t = Tensor::zeros(shape, kTypes[i], device_).contiguous();
        return t.realize();
      }
    return fail(Code::kInvalidArgument, "\"{}\": no dtype is called \"{}\"", text_, dtype);
  }
  Result<Tensor> call(std::string_view name) {
    for (const Function& f : kFunctions) {
      if (name != f.name) continue;
      Arguments tensors;
      Numbers numbers;
      for (size_t i = 0; i < f.tensors; ++i) {
        if (i > 0 && !take(',')) return wrong("\",\"");
        tensors.push_back(BM_TRY(sum()));
      }
      while (numbers.size() < f.numbers && take(',')) numbers.push_back(BM_TRY(integer()));
      numbers.resize(f.numbers);
      if (!take(')')) return wrong("\")\"");
      return f.apply(tensors, numbers);
    }
    return fail(Code::kInvalidArgument, "\"{}\": no function is called \"{}\"; {}", text_, name,
                expression_help());
  }
};

}  // namespace

std::string expression_help() {
  std::string out = "functions:";
  for (const Function& f : kFunctions) out += fmt::format(" {}", f.name);
  return out;
}

Result<Tensor> parse_expression(std::string_view text, std::string_view device,
                                std::vector<Tensor>* unwritten) {
  try {
    return Parser(text, device, unwritten).all();
  } catch (const Exception& e) {
    return tl::unexpected(e.error());
  }
}

}  // namespace bm::cli
