// Attention of 8 heads of 128, whole prompts (causal) and single steps.
#include <cmath>

#include "tools/bellmetal/cpu_bench/cases.h"

namespace bm::cli {
namespace {

constexpr int64_t kHeads = 8, kLength = 128;

Result<Contest> attention(World& w, int64_t positions, bool is_prompt) {
  const int64_t n = w.size(positions), queries = is_prompt ? n : 1;
  const std::vector<Tensor> in{w.random({1, kHeads, queries, kLength}, 1),
                               w.random({1, kHeads, n, kLength}, 2),
                               w.random({1, kHeads, n, kLength}, 3)};
  auto replay = make_replay(
      [is_prompt](const std::vector<Tensor>& t) {
        return Tensor::attention(t[0], t[1], t[2], {}, is_prompt);
      },
      in);
  Contest c;
  c.unit = Unit::kMicros;
  c.ours = contender("ours", [replay] { replay->run(); });
  if (auto* peer = w.python())
    invite(c, "PyTorch", [&](Contest& with) -> Status {
      BM_TRY(peer->clear());
      for (size_t i = 0; i < in.size(); ++i) BM_TRY(w.share(std::string(1, "qkv"[i]), in[i]));
      with.peers = BM_TRY(peer->contenders("attention", torch_attention(is_prompt)));
      return {};
    });
  c.check = [replay, in, queries, n]() -> Result<double> {
    return last_query_error({kHeads, kLength, queries, n}, replay->values(), in[0].data<float>(),
                            in[1].data<float>(), in[2].data<float>());
  };
  c.tolerance = 2e-5;
  c.goal = {.of_peer = 1.0, .of_bound = 0, .at_most = 0};
  return c;
}

}  // namespace

double last_query_error(const AttentionShape& s, const std::vector<float>& got,
                        const std::vector<float>& q, const std::vector<float>& k,
                        const std::vector<float>& v) {
  std::vector<float> mine, want;
  for (int64_t h = 0; h < s.heads; ++h) {
    const int64_t row = ((h + 1) * s.queries - 1) * s.length;
    std::vector<double> weight(static_cast<size_t>(s.positions)),
        sum(static_cast<size_t>(s.length), 0.0);
    double most = -INFINITY, total = 0;
    for (int64_t p = 0; p < s.positions; ++p) {
      double score = 0;
      for (int64_t d = 0; d < s.length; ++d)
        score += static_cast<double>(q[static_cast<size_t>(row + d)]) *
                 static_cast<double>(k[static_cast<size_t>((h * s.positions + p) * s.length + d)]);
      weight[static_cast<size_t>(p)] = score / std::sqrt(static_cast<double>(s.length));
      most = std::max(most, weight[static_cast<size_t>(p)]);
    }
    for (double& x : weight) total += x = std::exp(x - most);
    for (int64_t p = 0; p < s.positions; ++p)
      for (int64_t d = 0; d < s.length; ++d)
        sum[static_cast<size_t>(d)] +=
            weight[static_cast<size_t>(p)] / total *
            static_cast<double>(v[static_cast<size_t>((h * s.positions + p) * s.length + d)]);
    for (int64_t d = 0; d < s.length; ++d) {
      want.push_back(static_cast<float>(sum[static_cast<size_t>(d)]));
      mine.push_back(got[static_cast<size_t>(row + d)]);
    }
  }
  return relative_error(mine, want);
}

std::string torch_attention(bool is_causal) {
  // The function was private in PyTorch 1.13 and gave its weights, too.
  return fmt::format(
      "F.scaled_dot_product_attention(q, k, v, is_causal={0}) "
      "if hasattr(F, 'scaled_dot_product_attention') else "
      "F._scaled_dot_product_attention(q, k, v, None, 0.0, False, {0})[0]",
      is_causal ? "True" : "False");
}

std::vector<Case> attention_cases() {
  std::vector<Case> out;
  for (const bool is_prompt : {true, false})
    for (const int64_t n : {1, 16, 128, 512, 1024, 4096})
      out.push_back({fmt::format("attention {} {}", is_prompt ? "prefill" : "decode", n),
                     [n, is_prompt](World& w) { return attention(w, n, is_prompt); }});
  return out;
}

}  // namespace bm::cli
