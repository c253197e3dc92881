// Work on a matrix that reads or writes every element once: chains, norms, sums, transposition.
#include <algorithm>

#include "tools/bellmetal/cpu_bench/cases.h"
#include "tools/bellmetal/cpu_bench/row_cases.h"

namespace bm::cli {
namespace {

Result<Contest> make_row(World& w, const RowCase& row) {
  const int64_t n = w.size(4096);
  const std::vector<Tensor> in{w.random({n, n}, 1), w.random({n}, 2), w.random({n}, 3)};
  auto replay = make_replay(row.work, in);
  const auto bytes = static_cast<size_t>(n * n) * 4;
  Contest c;
  c.unit = Unit::kGbytes;
  c.amount = static_cast<double>(bytes) * (row.is_read_only ? 1 : 2);
  c.ours = contender("ours", [replay] { replay->run(); });
  if (auto* peer = w.python())
    invite(c, "PyTorch", [&](Contest& with) -> Status {
      BM_TRY(peer->clear());
      for (size_t i = 0; i < in.size(); ++i) BM_TRY(w.share(std::string(1, "xwb"[i]), in[i]));
      with.peers = BM_TRY(peer->contenders(row.name, row.expression));
      return {};
    });
  if (row.is_read_only) {
    c.bounds.push_back(read_limit(w.team(), bytes));
  } else {
    c.bounds.push_back(copy_limit(w.team(), bytes, false));
    c.bounds.push_back(copy_limit(w.team(), bytes, true));
  }
  c.check = [replay, in, n, &row]() -> Result<double> {
    return line_error(row, replay->values(),
                      {in[0].data<float>(), in[1].data<float>(), in[2].data<float>()}, n);
  };
  c.tolerance = 1e-5;
  c.goal = {.of_peer = 1.0, .of_bound = 0.85, .at_most = 0};
  return c;
}

Contest limit(Contender limit, Unit unit, double amount) {
  Contest c;
  c.unit = unit;
  c.amount = amount;
  c.ours = std::move(limit);
  return c;
}

}  // namespace

std::vector<Case> row_cases() {
  std::vector<Case> out;
  for (const RowCase& row : row_work())
    out.push_back(
        {fmt::format("{} 4096 x 4096", row.name), [&row](World& w) { return make_row(w, row); }});
  return out;
}

std::vector<Case> limit_cases() {
  std::vector<Case> out;
  out.push_back({"limit: FMA of float32", [](World& w) -> Result<Contest> {
                   double flops = 0;
                   Contender fma = fma_limit(w.team(), &flops);
                   return limit(std::move(fma), Unit::kGflops, flops);
                 }});
  struct Size {
    const char* name;
    size_t bytes;
  };
  constexpr Size kSizes[] = {
      {"16 KiB", 16 << 10}, {"512 KiB", 512 << 10}, {"8 MiB", 8 << 20}, {"512 MiB", 512 << 20}};
  for (const Size& s : kSizes)
    out.push_back(
        {fmt::format("limit: read {} per thread", s.name), [s](World& w) -> Result<Contest> {
           const size_t bytes = (w.is_tiny() ? 4096 : s.bytes) * w.threads();
           // Often enough for the hand-over to the threads not to count.
           const int times = std::max(1, static_cast<int>((16 << 20) / s.bytes));
           return limit(read_limit(w.team(), bytes, times), Unit::kGbytes,
                        static_cast<double>(bytes) * times);
         }});
  for (const bool is_streaming : {false, true})
    out.push_back({fmt::format("limit: copy 256 MiB{}", is_streaming ? ", non-temporal" : ""),
                   [is_streaming](World& w) -> Result<Contest> {
                     const size_t bytes = w.is_tiny() ? 4096 : size_t{256} << 20;
                     return limit(copy_limit(w.team(), bytes, is_streaming), Unit::kGbytes,
                                  2.0 * static_cast<double>(bytes));
                   }});
  return out;
}

}  // namespace bm::cli
