// Products of quantised matrices and one vector, as every step of a language model does them.
#include <cmath>

#include "models/llama_matrix.h"
#include "tools/bellmetal/cpu_bench/cases.h"
#include "tools/bellmetal/cpu_bench/random_llama.h"

namespace bm::cli {
namespace {

using models::GgmlType;

struct Blocks {
  GgmlType type;
  int64_t rows, columns;
  std::vector<std::byte> data;

  std::span<const std::byte> row(int64_t i) const {
    const size_t bytes = data.size() / static_cast<size_t>(rows);
    return std::span(data).subspan(static_cast<size_t>(i) * bytes, bytes);
  }
};

/// Error on at most 64 rows, against float64 sums over the values the blocks stand for.
double quantised_error(const Blocks& b, const std::vector<float>& x,
                       const std::vector<float>& got) {
  if (got.size() != static_cast<size_t>(b.rows)) return INFINITY;
  std::vector<float> mine, want, row(static_cast<size_t>(b.columns));
  for (int64_t i = 0; i < b.rows; i += std::max<int64_t>(1, b.rows / 64)) {
    if (!models::dequantize_row(b.type, b.row(i), row)) return INFINITY;
    double sum = 0;
    for (size_t j = 0; j < row.size(); ++j)
      sum += static_cast<double>(row[j]) * static_cast<double>(x[j]);
    want.push_back(static_cast<float>(sum));
    mine.push_back(got[static_cast<size_t>(i)]);
  }
  return relative_error(mine, want);
}

Result<Contest> quantised_gemv(World& w, GgmlType type, int64_t rows, int64_t columns,
                               double goal) {
  auto blocks = std::make_shared<Blocks>(Blocks{type, w.size(rows), w.size(columns), {}});
  blocks->data = random_blocks(type, static_cast<uint64_t>(blocks->rows),
                               static_cast<uint64_t>(blocks->columns));
  const Tensor x = w.random({1, blocks->columns}, 1);
  const auto matrix =
      models::Matrix::pack(type, blocks->data, blocks->rows, blocks->columns, w.device());
  auto replay = make_replay(
      [matrix](const std::vector<Tensor>& in) {
        return matrix.linear(models::QuantisedActivations(in[0]));
      },
      {x});
  Contest c;
  c.unit = Unit::kMicros;
  c.ours = contender("ours", [replay] { replay->run(); });
  if (auto* peer = w.ggml())
    for (const bool is_repacked : {false, true}) {
      auto product = peer->product({type, blocks->rows, blocks->columns, blocks->data},
                                   x.data<float>(), is_repacked);
      if (!product) {
        c.notes.push_back(product.error().message);
        continue;
      }
      std::shared_ptr<Ggml::Product> it = std::move(*product);
      if (quantised_error(*blocks, x.data<float>(), it->result()) > 0.02)
        c.notes.push_back("ggml gives another result");
      c.peers.push_back(
          contender(is_repacked ? "ggml repacked" : "ggml", [it, blocks] { it->run(); }));
    }
  c.bounds.push_back(read_limit(w.team(), blocks->data.size()));
  c.check = [replay, blocks, x]() -> Result<double> {
    return quantised_error(*blocks, x.data<float>(), replay->values());
  };
  c.tolerance = 0.01;  // of int8 activations: about 0.004
  c.goal = {.of_peer = goal, .of_bound = 0, .at_most = 0};
  return c;
}

}  // namespace

std::vector<Case> quant_cases() {
  std::vector<Case> out;
  for (const int64_t rows : {4096, 32768})
    for (const GgmlType type : {GgmlType::kQ8_0, GgmlType::kQ4_0})
      out.push_back({fmt::format("{} gemv {} x 4096", models::ggml_type_info(type).name, rows),
                     [=](World& w) {
                       return quantised_gemv(w, type, rows, 4096,
                                             type == GgmlType::kQ8_0 ? 1.1 : 1.3);
                     }});
  return out;
}

}  // namespace bm::cli
