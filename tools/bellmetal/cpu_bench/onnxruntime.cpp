#include "tools/bellmetal/cpu_bench/onnxruntime.h"

#include <array>

#include "tensor/exception.h"

namespace bm::cli {
namespace {

// Source: onnxruntime_c_api.h, struct OrtApi: a table of functions that only grows at its end; the
// numbers are places in it, the same since version 1 of the table.
enum Place : size_t {
  kGetErrorMessage = 2,
  kCreateEnv = 3,
  kCreateSessionFromArray = 8,
  kRun = 9,
  kCreateSessionOptions = 10,
  kSetIntraOpNumThreads = 24,
  kSetInterOpNumThreads = 25,
  kCreateTensorWithData = 49,
  kGetTensorMutableData = 51,
  kCreateCpuMemoryInfo = 69,
};
using Handle = void*;
struct ApiBase {
  const Handle* (*get_api)(uint32_t version);
  const char* (*version)();
};
constexpr int kLogError = 3, kOnnxFloat = 1, kArena = 1, kDefaultMemory = 0;

class Table {
 public:
  explicit Table(const Handle* functions) : functions_(functions) {}
  /// Calls a function that returns a status.
  template <class... Args>
  Status call(Place place, Args... args) const {
    const auto function = reinterpret_cast<Handle (*)(Args...)>(functions_[place]);
    if (Handle status = function(args...)) {
      const auto message = reinterpret_cast<const char* (*)(Handle)>(functions_[kGetErrorMessage]);
      return fail(Code::kInternal, "onnxruntime: {}", message(status));
    }
    return {};
  }

 private:
  const Handle* functions_;
};

// Handles live as long as the process: this is a measurement.
class OrtSession final : public OnnxRuntime::Session {
 public:
  explicit OrtSession(const Table& table) : table_(table) {}
  Status open(Handle env, Handle options, const std::string& model, std::vector<float> input,
              const std::vector<int64_t>& shape, size_t outputs) {
    input_ = std::move(input);
    output_.resize(outputs);
    BM_TRY(table_.call(kCreateSessionFromArray, env, static_cast<const void*>(model.data()),
                       model.size(), options, &session_));
    Handle memory = nullptr;
    BM_TRY(table_.call(kCreateCpuMemoryInfo, kArena, kDefaultMemory, &memory));
    BM_TRY(tensor(memory, input_, shape, x_));
    return tensor(memory, output_, {1, static_cast<int64_t>(outputs)}, y_);
  }
  void run() override {
    static constexpr std::array kIn = {"x"}, kOut = {"y"};
    unwrap(table_.call(kRun, session_, Handle{}, kIn.data(), static_cast<const Handle*>(&x_),
                       size_t{1}, kOut.data(), size_t{1}, &y_));
  }
  std::vector<float> result() override {
    run();
    return output_;
  }

 private:
  Status tensor(Handle memory, std::vector<float>& values, const std::vector<int64_t>& shape,
                Handle& out) {
    return table_.call(kCreateTensorWithData, memory, static_cast<void*>(values.data()),
                       values.size() * sizeof(float), shape.data(), shape.size(), kOnnxFloat, &out);
  }
  Table table_;
  Handle session_ = nullptr, x_ = nullptr, y_ = nullptr;
  std::vector<float> input_, output_;
};

class Ort final : public OnnxRuntime {
 public:
  explicit Ort(const Handle* functions) : table_(functions) {}
  Status prepare(uint32_t threads) {
    BM_TRY(table_.call(kCreateEnv, kLogError, "bellmetal", &env_));
    BM_TRY(table_.call(kCreateSessionOptions, &options_));
    BM_TRY(table_.call(kSetIntraOpNumThreads, options_, static_cast<int>(threads)));
    return table_.call(kSetInterOpNumThreads, options_, 1);
  }
  Result<std::unique_ptr<Session>> load(const std::string& model, const std::vector<float>& input,
                                        const std::vector<int64_t>& shape,
                                        size_t outputs) override {
    auto session = std::make_unique<OrtSession>(table_);
    BM_TRY(session->open(env_, options_, model, input, shape, outputs));
    return session;
  }

 private:
  Table table_;
  Handle env_ = nullptr, options_ = nullptr;
};

}  // namespace

Result<std::unique_ptr<OnnxRuntime>> OnnxRuntime::open(const std::string& path, uint32_t threads) {
  const auto library = BM_TRY(Library::open(
      path, {"libonnxruntime.so.1", "libonnxruntime.so"},
      "install libonnxruntime or give --peer onnxruntime=PATH (the npm package onnxruntime-node "
      "holds one, too)"));
  const ApiBase* (*base)() = nullptr;
  BM_TRY(library->bind(base, "OrtGetApiBase"));
  const Handle* functions = base()->get_api(1);
  if (!functions) return fail(Code::kUnsupported, "{}: no version 1 of its API", library->name());
  auto out = std::make_unique<Ort>(functions);
  BM_TRY(out->prepare(threads));
  return out;
}

}  // namespace bm::cli
