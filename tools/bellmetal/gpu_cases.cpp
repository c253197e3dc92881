#include "tools/bellmetal/gpu_cases.h"

#include <chrono>

#include "tools/bellmetal/cpu_bench/cases.h"
#include "tools/bellmetal/cpu_bench/row_cases.h"

namespace bm::cli {
namespace {

/// Rows and columns: several times the largest cache of a GPU.
constexpr int64_t kSize = 8192;
constexpr int64_t kHeads = 16, kLength = 128;

/// Replays on the same tensors, submitted one after the other and awaited together.
class Replays {
 public:
  using Work = std::function<Tensor(const std::vector<Tensor>&)>;
  Replays(Work work, std::vector<Tensor> inputs) : step_(std::move(work)), in_(std::move(inputs)) {
    step_.capture(in_);
  }
  const std::vector<Tensor>& inputs() const { return in_; }
  double seconds(int calls) {
    const auto start = std::chrono::steady_clock::now();
    for (int i = 0; i < calls; ++i) step_(in_);
    unwrap(in_[0].device().synchronize());
    return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  }
  std::vector<float> values() { return step_(in_).cast(DType::kF32).data<float>(); }

 private:
  Jit<Work> step_;
  std::vector<Tensor> in_;
};

Contender ours(std::shared_ptr<Replays> replays) {
  return {"ours", [replays](int calls) { return replays->seconds(calls); }};
}

/// Moves as many bytes as `amount`, each read once and written once.
Contender copy_bound(std::shared_ptr<DeviceCopies> copies, double amount) {
  const auto bytes = static_cast<uint64_t>(amount / 2);
  return {copies->name(), [copies, bytes](int calls) {
            const auto start = std::chrono::steady_clock::now();
            for (int i = 0; i < calls; ++i) copies->copy(bytes);
            copies->wait();
            return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
          }};
}

/// The Python peer with its tensors on the GPU; nullptr where there is none, which is noted.
PythonPeer* torch(World& w, runtime::Device& device) {
  const bool is_gpu = device.hal().arch().vendor == hal::Vendor::kNv;
  PythonPeer* peer = w.python();
  if (!peer) return nullptr;
  if (is_gpu) {
    if (const Status found = peer->use_gpu(0); !found) {
      w.note("no PyTorch on the GPU: " + found.error().message);
      return nullptr;
    }
  }
  return peer;
}

Status add_torch(World& w, runtime::Device& device, const std::vector<Tensor>& in,
                 const char* names, const std::string& expression, Contest* c) {
  PythonPeer* peer = torch(w, device);
  if (!peer) return {};
  BM_TRY(peer->clear());
  for (size_t i = 0; i < in.size(); ++i) BM_TRY(w.share(std::string(1, names[i]), in[i]));
  BM_TRY(peer->define("work", expression));
  peer->run("work", 1);
  c->peers.push_back({"PyTorch", [peer](int calls) { return peer->run("work", calls); }});
  return {};
}

std::vector<std::vector<float>> host_values(const std::vector<Tensor>& in) {
  std::vector<std::vector<float>> out;
  for (const Tensor& t : in) out.push_back(t.cast(DType::kF32).data<float>());
  return out;
}

Result<Contest> make_row(World& w, runtime::Device& device, std::shared_ptr<DeviceCopies> copies,
                         const RowCase& row, DType dtype) {
  const int64_t n = w.size(kSize);
  std::vector<Tensor> in{w.random({n, n}, 1), w.random({n}, 2), w.random({n}, 3)};
  for (Tensor& t : in) t = t.cast(dtype).contiguous().realize();
  auto replays = std::make_shared<Replays>(row.work, in);
  Contest c;
  c.unit = Unit::kGbytes;
  c.amount = static_cast<double>(n * n) * static_cast<double>(item_size(dtype)) *
             (row.is_read_only ? 1 : 2);
  c.ours = ours(replays);
  invite(c, "PyTorch",
         [&](Contest& with) { return add_torch(w, device, in, "xwb", row.expression, &with); });
  if (copies) c.bounds.push_back(copy_bound(copies, c.amount));
  c.check = [replays, n, &row]() -> Result<double> {
    return line_error(row, replays->values(), host_values(replays->inputs()), n);
  };
  // Every operation of a chain is rounded to 8 bits of precision.
  c.tolerance = dtype == DType::kBF16 ? 0x1p-5 : 1e-5;
  c.goal = {.of_peer = 1.0, .of_bound = 0.85, .at_most = 0};
  return c;
}

struct AttentionRow {
  int64_t positions;
  bool is_prompt, is_causal;
};

Result<Contest> make_attention(World& w, runtime::Device& device, const AttentionRow& row) {
  const int64_t n = w.size(row.positions), heads = w.is_tiny() ? 2 : kHeads;
  const int64_t queries = row.is_prompt ? n : 1;
  std::vector<Tensor> in{w.random({1, heads, queries, kLength}, 1),
                         w.random({1, heads, n, kLength}, 2), w.random({1, heads, n, kLength}, 3)};
  for (Tensor& t : in) t = t.cast(DType::kF16).contiguous().realize();
  auto replays = std::make_shared<Replays>(
      [is_causal = row.is_causal](const std::vector<Tensor>& t) {
        return Tensor::attention(t[0], t[1], t[2], {}, is_causal);
      },
      in);
  Contest c;
  c.unit = Unit::kGflops;
  // Two products, of which causal attention needs half.
  c.amount = 4.0 * static_cast<double>(heads * queries * n * kLength) / (row.is_causal ? 2 : 1);
  c.ours = ours(replays);
  invite(c, "PyTorch", [&](Contest& with) {
    return add_torch(w, device, in, "qkv", torch_attention(row.is_causal), &with);
  });
  c.check = [replays, heads, queries, n]() -> Result<double> {
    const auto host = host_values(replays->inputs());
    return last_query_error({heads, kLength, queries, n}, replays->values(), host[0], host[1],
                            host[2]);
  };
  // Weights and results are rounded to 11 bits of precision.
  c.tolerance = 4e-3;
  c.goal = {.of_peer = 1.0, .of_bound = 0, .at_most = 0};
  return c;
}

std::string name_of(const AttentionRow& row) {
  return fmt::format("attention f16 {} {}{}", row.is_prompt ? "prefill" : "decode", row.positions,
                     row.is_causal ? ", causal" : "");
}

}  // namespace

uint64_t most_copied(const World& world) {
  const auto n = static_cast<uint64_t>(world.size(kSize));
  return n * n * sizeof(float);
}

std::vector<GpuCase> gpu_cases() {
  std::vector<GpuCase> out;
  for (const DType dtype : {DType::kF32, DType::kBF16})
    for (const RowCase& row : row_work()) {
      if (row.is_ordered) continue;  // not among what GPUs are judged by
      out.push_back(
          {fmt::format("{} {} {} x {}", row.name, dtype_name(dtype), kSize, kSize),
           [&row, dtype](World& w, runtime::Device& device, std::shared_ptr<DeviceCopies> copies) {
             return make_row(w, device, std::move(copies), row, dtype);
           }});
    }
  for (const AttentionRow& row : {AttentionRow{1024, true, false}, AttentionRow{4096, true, false},
                                  AttentionRow{1024, true, true}, AttentionRow{4096, true, true},
                                  AttentionRow{4096, false, false}})
    out.push_back({name_of(row),
                   [row](World& w, runtime::Device& device, const std::shared_ptr<DeviceCopies>&) {
                     return make_attention(w, device, row);
                   }});
  return out;
}

}  // namespace bm::cli
