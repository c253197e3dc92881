// Kernels that one clang compiles together are what it makes of each alone.
#include <gtest/gtest.h>

#include <array>
#include <filesystem>
#include <fstream>
#include <optional>

#include "compiler/compile.h"
#include "compiler/compile_all.h"
#include "compiler/toolchain/toolchain.h"
#include "runtime/base/env.h"
#include "tensor/tensor.h"
#include "tests/unit/compiler/cache/temporary_directory.h"
#include "tests/unit/compiler/kernels.h"
#include "tests/unit/compiler/runner.h"

namespace bm::test {
namespace {

/// Stands for clang, and counts its starts: of every kernel, whatever an earlier run left in the
/// kernel cache.
class CountedClang {
 public:
  /// `first`: what a shell does before it becomes clang.
  explicit CountedClang(const std::string& first = "") {
    const std::string version = compiler::clang_version().value();
    std::ofstream(path()) << "#!/bin/sh\necho start >> " << starts_path() << "\n"
                          << first << "\nexec " << version.substr(0, version.find(' '))
                          << " \"$@\"\n";
    std::filesystem::permissions(path(), std::filesystem::perms::owner_all);
    clang_.emplace("BM_CLANG", path());
  }
  size_t starts() const {
    std::ifstream file(starts_path());
    size_t count = 0;
    for (std::string line; std::getline(file, line);) ++count;
    return count;
  }

 private:
  std::string path() const { return folder_.path() + "/clang"; }
  std::string starts_path() const { return folder_.path() + "/starts"; }
  TemporaryDirectory folder_;
  const ScopedSetting no_cache_{"BM_CACHE", "0"};
  std::optional<ScopedSetting> clang_;
};

/// Kernels of this batch alone, several of one name too, and their code.
struct Batch {
  static int64_t next() {
    static int64_t n = 0;
    return ++n;
  }
  const int64_t n = next();
  const std::array<ir::KernelIr, 5> kernels{
      matmul_kernel(13, 37, n, DType::kF32), softmax_kernel(5, 100 + n),
      matmul_kernel(3, 4, n, DType::kF16), transpose_kernel(30, 7 + n, DType::kI32),
      matmul_kernel(8, 8, n, DType::kF64)};
  const std::vector<Result<hal::CodeObject>> codes = [this] {
    std::vector<const ir::KernelIr*> pointers;
    for (const ir::KernelIr& kernel : kernels) pointers.push_back(&kernel);
    return compiler::compile_all(pointers, native_arch(), "CLANG");
  }();

  void expect_same_as_alone() const {
    ASSERT_EQ(codes.size(), kernels.size());
    for (size_t i = 0; i < codes.size(); ++i) {
      ASSERT_TRUE(codes[i]) << codes[i].error().message;
      const auto alone =
          compiler::compile(kernels[i], native_arch(), "CLANG", {.use_cache = false});
      ASSERT_TRUE(alone) << alone.error().message;
      EXPECT_EQ(codes[i]->serialize(), alone->serialize()) << "kernel " << i;
    }
  }
};

/// What is said to a clang of several sources, and to no other.
std::string when_together(std::string_view then) {
  return fmt::format("case \"$*\" in *-ivfsoverlay*) {};; esac", then);
}

TEST(ClangTogether, GivesTheBytesOfEachAlone) {
  const CountedClang clang;
  const Batch batch;
  EXPECT_EQ(clang.starts(), 1U);
  batch.expect_same_as_alone();
}

TEST(ClangTogether, GoesOneByOneWhereAClangDoesNotTakeThem) {
  const CountedClang clang(when_together("exit 1"));
  const Batch batch;
  EXPECT_EQ(clang.starts(), 1 + batch.kernels.size());
  batch.expect_same_as_alone();
}

TEST(ClangTogether, DoesNotTrustOutputThatIsNotInOrder) {
  for (const char* output : {"exit 0", "printf '%0100d' 0; exit 0", "kill -9 $$",
                             // One source too many, as if that on stdin did not come last.
                             "set -- \"$@\" -Xclang /bellmetal/0/-"}) {
    const CountedClang clang(when_together(output));
    const Batch batch;
    EXPECT_EQ(clang.starts(), 1 + batch.kernels.size()) << output;
    batch.expect_same_as_alone();
  }
}

TEST(ClangTogether, AnErrorNamesItsKernel) {
  const CountedClang clang("echo '<stdin>:1:1: error: not today' >&2; exit 1");
  const Batch batch;
  for (const auto& code : batch.codes) {
    ASSERT_FALSE(code);
    EXPECT_EQ(code.error().code, Code::kCompile);
    EXPECT_NE(code.error().message.find("not today"), std::string::npos);
  }
  EXPECT_EQ(batch.codes[1].error().message.find("kernel softmax"), 0U)
      << batch.codes[1].error().message;
}

TEST(ClangTogether, ATensorProgramStartsOnePerThread) {
  const ScopedSetting threads("BM_THREADS", "1");
  const CountedClang clang;
  std::vector<Tensor> outputs;
  for (int64_t n = 3; n < 9; ++n)
    outputs.push_back(Tensor::arange(n, DType::kF32, "CPU:CLANG").exp().contiguous());
  std::vector<Tensor*> all;
  for (Tensor& t : outputs) all.push_back(&t);
  Tensor::realize(all);
  EXPECT_NEAR(outputs[5].data<float>()[2], 7.389F, 0.001F);
  EXPECT_EQ(clang.starts(), 1U);
}

}  // namespace
}  // namespace bm::test
