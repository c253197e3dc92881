#include "tools/bellmetal/cpu_bench/ggml.h"

namespace bm::cli {
namespace {

// Source: ggml, ggml.h, ggml-alloc.h, ggml-backend.h and ggml-cpu.h. Everything but the parameters
// of a context is only handed around by address.
using Handle = void*;
struct ContextParameters {
  size_t bytes;
  void* memory;
  bool has_no_data;
};
constexpr int kF32 = 0;
constexpr size_t kContextBytes = 1 << 20;

struct Api {
  Handle (*init)(ContextParameters);
  Handle (*new_tensor_2d)(Handle context, int type, int64_t columns, int64_t rows);
  Handle (*mul_mat)(Handle context, Handle a, Handle b);
  Handle (*new_graph)(Handle context);
  void (*build)(Handle graph, Handle result);
  Handle (*cpu_init)();
  void (*set_threads)(Handle backend, int threads);
  Handle (*default_buffers)(Handle backend);
  Handle (*allocate)(Handle context, Handle buffer_type);
  void (*set)(Handle tensor, const void* data, size_t offset, size_t bytes);
  void (*get)(Handle tensor, void* data, size_t offset, size_t bytes);
  int (*compute)(Handle backend, Handle graph);
  Handle (*device_of)(Handle backend);
  Handle (*registry_of)(Handle device);
  void* (*address)(Handle registry, const char* name);
  bool (*supports)(Handle device, Handle op);
};

Status bind(const Library& lib, Api& api) {
  BM_TRY(lib.bind(api.init, "ggml_init"));
  BM_TRY(lib.bind(api.new_tensor_2d, "ggml_new_tensor_2d"));
  BM_TRY(lib.bind(api.mul_mat, "ggml_mul_mat"));
  BM_TRY(lib.bind(api.new_graph, "ggml_new_graph"));
  BM_TRY(lib.bind(api.build, "ggml_build_forward_expand"));
  BM_TRY(lib.bind(api.cpu_init, "ggml_backend_cpu_init"));
  BM_TRY(lib.bind(api.set_threads, "ggml_backend_cpu_set_n_threads"));
  BM_TRY(lib.bind(api.default_buffers, "ggml_backend_get_default_buffer_type"));
  BM_TRY(lib.bind(api.allocate, "ggml_backend_alloc_ctx_tensors_from_buft"));
  BM_TRY(lib.bind(api.set, "ggml_backend_tensor_set"));
  BM_TRY(lib.bind(api.get, "ggml_backend_tensor_get"));
  BM_TRY(lib.bind(api.compute, "ggml_backend_graph_compute"));
  BM_TRY(lib.bind(api.device_of, "ggml_backend_get_device"));
  BM_TRY(lib.bind(api.registry_of, "ggml_backend_dev_backend_reg"));
  BM_TRY(lib.bind(api.address, "ggml_backend_reg_get_proc_address"));
  return lib.bind(api.supports, "ggml_backend_dev_supports_op");
}

// Contexts and buffers live as long as the process: this is a measurement.
class GgmlProduct final : public Ggml::Product {
 public:
  GgmlProduct(const Api& api, Handle backend) : api_(api), backend_(backend) {}

  Status prepare(const Ggml::Matrix& m, std::span<const float> vector, Handle weight_buffers) {
    const Handle weights = api_.init({kContextBytes, nullptr, true});
    const Handle values = api_.init({kContextBytes, nullptr, true});
    const Handle w = api_.new_tensor_2d(weights, static_cast<int>(m.type), m.columns, m.rows);
    if (!api_.allocate(weights, weight_buffers))
      return fail(Code::kOutOfMemory, "ggml: {} bytes of weights", m.data.size());
    const Handle x = api_.new_tensor_2d(values, kF32, m.columns, 1);
    y_ = api_.mul_mat(values, w, x);
    if (!api_.supports(api_.device_of(backend_), y_))
      return fail(Code::kUnsupported, "ggml repacks no {} of this shape",
                  models::ggml_type_info(m.type).name);
    graph_ = api_.new_graph(values);
    api_.build(graph_, y_);
    if (!api_.allocate(values, api_.default_buffers(backend_)))
      return fail(Code::kOutOfMemory, "ggml: vectors");
    api_.set(w, m.data.data(), 0, m.data.size());
    api_.set(x, vector.data(), 0, vector.size_bytes());
    rows_ = m.rows;
    return {};
  }
  void run() override { api_.compute(backend_, graph_); }
  std::vector<float> result() override {
    run();
    std::vector<float> out(static_cast<size_t>(rows_));
    api_.get(y_, out.data(), 0, out.size() * sizeof(float));
    return out;
  }

 private:
  const Api& api_;
  Handle backend_, graph_ = nullptr, y_ = nullptr;
  int64_t rows_ = 0;
};

class GgmlLibrary final : public Ggml {
 public:
  Status open(const std::string& path, uint32_t threads) {
    library_ = BM_TRY(Library::open(path, {"libggml.so", "libggml.so.0"},
                                    "build ggml and give --peer ggml=PATH of its libggml.so"));
    BM_TRY(bind(*library_, api_));
    backend_ = api_.cpu_init();
    if (!backend_) return fail(Code::kInternal, "ggml: no CPU backend");
    api_.set_threads(backend_, static_cast<int>(threads));
    return {};
  }
  Result<std::unique_ptr<Product>> product(const Matrix& matrix, std::span<const float> vector,
                                           bool is_repacked) override {
    auto out = std::make_unique<GgmlProduct>(api_, backend_);
    if (!is_repacked) {
      BM_TRY(out->prepare(matrix, vector, api_.default_buffers(backend_)));
      return out;
    }
    const Handle device = api_.device_of(backend_);
    const auto extra = reinterpret_cast<Handle* (*)(Handle)>(
        api_.address(api_.registry_of(device), "ggml_backend_dev_get_extra_bufts"));
    // A list that ends with a null pointer; the plainest repacking comes last.
    Handle last = nullptr;
    for (Handle* type = extra ? extra(device) : nullptr; type && *type; ++type) last = *type;
    if (!last) return fail(Code::kUnsupported, "this ggml repacks nothing");
    BM_TRY(out->prepare(matrix, vector, last));
    return out;
  }

 private:
  std::shared_ptr<Library> library_;
  Api api_{};
  Handle backend_ = nullptr;
};

}  // namespace

Result<std::unique_ptr<Ggml>> Ggml::open(const std::string& path, uint32_t threads) {
  auto out = std::make_unique<GgmlLibrary>();
  BM_TRY(out->open(path, threads));
  return out;
}

}  // namespace bm::cli
