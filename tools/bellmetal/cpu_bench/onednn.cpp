#include "tools/bellmetal/cpu_bench/onednn.h"

#include <array>
#include <cstddef>
#include <cstdlib>

#include "runtime/base/check.h"

namespace bm::cli {
namespace {

// Source of declarations and numbers: oneDNN 2.6, dnnl.h and dnnl_types.h. Descriptors are only
// handed around by address, so their layout does not matter; they are below 4 KiB.
struct alignas(64) Descriptor {
  std::array<std::byte, 16384> bytes;
};
using Handle = void*;
using Dims = std::array<int64_t, 12>;
struct ExecArg {
  int arg;
  Handle memory;
};
struct Version {
  int major, minor, patch;
};
constexpr int kEngineCpu = 1, kTagAny = 1, kQueryWeights = 131;
constexpr unsigned kInOrder = 1;
constexpr int kArgSource = 1, kArgTarget = 17, kArgWeights = 33;

struct Api {
  const Version* (*version)();
  int (*engine_create)(Handle*, int kind, size_t index);
  int (*stream_create)(Handle*, Handle engine, unsigned flags);
  int (*stream_wait)(Handle stream);
  int (*md_by_strides)(Descriptor*, int rank, const int64_t* dims, int type, const int64_t*);
  int (*md_by_tag)(Descriptor*, int rank, const int64_t* dims, int type, int tag);
  size_t (*md_size)(const void* md);
  int (*matmul_init)(Descriptor*, const void* a, const void* b, const void* bias, const void* c);
  int (*pd_create)(Handle*, const void* op, Handle attributes, Handle engine, Handle hint);
  int (*reorder_pd)(Handle*, const void* from, Handle, const void* to, Handle, Handle attributes);
  const void* (*pd_md)(Handle pd, int what, int index);
  int (*primitive_create)(Handle*, Handle pd);
  int (*execute)(Handle primitive, Handle stream, int count, const ExecArg* args);
  int (*memory_create)(Handle*, const void* md, Handle engine, void* pointer);
  int (*sgemm)(char, char, int64_t m, int64_t n, int64_t k, float alpha, const float* a,
               int64_t lda, const float* b, int64_t ldb, float beta, float* c, int64_t ldc);
};

Status bind(const Library& lib, Api& api) {
  BM_TRY(lib.bind(api.engine_create, "dnnl_engine_create"));
  BM_TRY(lib.bind(api.stream_create, "dnnl_stream_create"));
  BM_TRY(lib.bind(api.stream_wait, "dnnl_stream_wait"));
  BM_TRY(lib.bind(api.md_by_strides, "dnnl_memory_desc_init_by_strides"));
  BM_TRY(lib.bind(api.md_by_tag, "dnnl_memory_desc_init_by_tag"));
  BM_TRY(lib.bind(api.md_size, "dnnl_memory_desc_get_size"));
  BM_TRY(lib.bind(api.matmul_init, "dnnl_matmul_desc_init"));
  BM_TRY(lib.bind(api.pd_create, "dnnl_primitive_desc_create"));
  BM_TRY(lib.bind(api.reorder_pd, "dnnl_reorder_primitive_desc_create"));
  BM_TRY(lib.bind(api.pd_md, "dnnl_primitive_desc_query_md"));
  BM_TRY(lib.bind(api.primitive_create, "dnnl_primitive_create"));
  BM_TRY(lib.bind(api.execute, "dnnl_primitive_execute"));
  BM_TRY(lib.bind(api.memory_create, "dnnl_memory_create"));
  return lib.bind(api.sgemm, "dnnl_sgemm");
}

Status ok(int status, const char* what) {
  if (status == 0) return {};
  return fail(Code::kUnsupported, "oneDNN: {}: status {} (dnnl_types.h, dnnl_status_t)", what,
              status);
}

struct Session {
  std::shared_ptr<Library> library;
  Api api{};
  Handle engine = nullptr, stream = nullptr;

  Status execute(Handle primitive, std::span<const ExecArg> args) {
    BM_TRY(ok(api.execute(primitive, stream, static_cast<int>(args.size()), args.data()),
              "dnnl_primitive_execute"));
    return ok(api.stream_wait(stream), "dnnl_stream_wait");
  }
  Result<Handle> memory(const void* md, void* pointer) {
    Handle h = nullptr;
    BM_TRY(ok(api.memory_create(&h, md, engine, pointer), "dnnl_memory_create"));
    return h;
  }
  Result<Handle> primitive(Handle pd) {
    Handle h = nullptr;
    BM_TRY(ok(api.primitive_create(&h, pd), "dnnl_primitive_create"));
    return h;
  }
};

struct FreeMemory {
  void operator()(void* p) const { std::free(p); }
};

class PackedMatmul final : public OneDnn::Matmul {
 public:
  explicit PackedMatmul(std::shared_ptr<Session> session) : s_(std::move(session)) {}

  Status prepare(const OneDnn::MatmulShape& shape, const void* a, const void* b, void* c) {
    const auto plain = [&](Descriptor& md, int64_t rows, int64_t columns, DnnlType type) {
      const Dims dims{rows, columns}, strides{columns, 1};
      return ok(s_->api.md_by_strides(&md, 2, dims.data(), static_cast<int>(type), strides.data()),
                "memory descriptor");
    };
    auto md = std::make_unique<std::array<Descriptor, 5>>();
    auto& [left, right, any, out, op] = *md;
    BM_TRY(plain(left, shape.m, shape.k, shape.a));
    BM_TRY(plain(right, shape.k, shape.n, shape.b));
    BM_TRY(plain(out, shape.m, shape.n, shape.c));
    const Dims dims{shape.k, shape.n};
    BM_TRY(ok(s_->api.md_by_tag(&any, 2, dims.data(), static_cast<int>(shape.b), kTagAny),
              "memory descriptor"));
    BM_TRY(ok(s_->api.matmul_init(&op, &left, &any, nullptr, &out), "dnnl_matmul_desc_init"));
    Handle pd = nullptr;
    BM_TRY(ok(s_->api.pd_create(&pd, &op, nullptr, s_->engine, nullptr), "matmul"));
    const void* packed = s_->api.pd_md(pd, kQueryWeights, 0);
    const size_t bytes = s_->api.md_size(packed);
    packed_.reset(std::aligned_alloc(4096, (bytes + 4095) / 4096 * 4096));
    primitive_ = BM_TRY(s_->primitive(pd));
    const Handle weights = BM_TRY(s_->memory(packed, packed_.get()));
    args_ = {{{kArgSource, BM_TRY(s_->memory(&left, const_cast<void*>(a)))},
              {kArgWeights, weights},
              {kArgTarget, BM_TRY(s_->memory(&out, c))}}};
    Handle reorder = nullptr;
    BM_TRY(ok(s_->api.reorder_pd(&reorder, &right, s_->engine, packed, s_->engine, nullptr),
              "reorder"));
    const std::array<ExecArg, 2> pack{
        {{kArgSource, BM_TRY(s_->memory(&right, const_cast<void*>(b)))}, {kArgTarget, weights}}};
    return s_->execute(BM_TRY(s_->primitive(reorder)), pack);
  }
  void run() override { BM_CHECK(s_->execute(primitive_, args_)); }

 private:
  std::shared_ptr<Session> s_;
  Handle primitive_ = nullptr;
  std::array<ExecArg, 3> args_{};
  std::unique_ptr<void, FreeMemory> packed_;
};

class OneDnnV2 final : public OneDnn {
 public:
  explicit OneDnnV2(std::shared_ptr<Session> session) : s_(std::move(session)) {}
  void gemm(int64_t m, int64_t n, int64_t k, const float* a, const float* b, float* c) override {
    s_->api.sgemm('N', 'N', m, n, k, 1, a, k, b, n, 0, c, n);
  }
  Result<std::unique_ptr<Matmul>> prepacked(const MatmulShape& shape, const void* a, const void* b,
                                            void* c) override {
    auto out = std::make_unique<PackedMatmul>(s_);
    BM_TRY(out->prepare(shape, a, b, c));
    return out;
  }
  std::string version() const override {
    const Version& v = *s_->api.version();
    return fmt::format("{}.{}.{}", v.major, v.minor, v.patch);
  }

 private:
  std::shared_ptr<Session> s_;
};

/// Debian's library runs its loops on OpenMP.
void set_openmp_threads(uint32_t threads) {
  const auto openmp = Library::open("", {"libgomp.so.1", "libomp.so.5"}, "");
  void (*set)(int) = nullptr;
  if (openmp && (*openmp)->bind(set, "omp_set_num_threads")) set(static_cast<int>(threads));
}

}  // namespace

Result<std::unique_ptr<OneDnn>> OneDnn::open(const std::string& path, uint32_t threads) {
  auto session = std::make_shared<Session>();
  session->library = BM_TRY(Library::open(path, {"libdnnl.so.2", "libdnnl.so"},
                                          "install libdnnl2 or give --peer onednn=PATH"));
  BM_TRY(session->library->bind(session->api.version, "dnnl_version"));
  if (session->api.version()->major != 2)
    return fail(Code::kUnsupported, "{} is oneDNN {}; version 2 is needed",
                session->library->name(), session->api.version()->major);
  BM_TRY(bind(*session->library, session->api));
  set_openmp_threads(threads);
  BM_TRY(ok(session->api.engine_create(&session->engine, kEngineCpu, 0), "dnnl_engine_create"));
  BM_TRY(ok(session->api.stream_create(&session->stream, session->engine, kInOrder),
            "dnnl_stream_create"));
  return std::make_unique<OneDnnV2>(std::move(session));
}

}  // namespace bm::cli
