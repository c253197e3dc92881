// Facts of the loader against the toolkit's own report (ptxas -v) of the same compilation, for
// every architecture the installed nvrtc can target.

#include <gtest/gtest.h>

#include <algorithm>
#include <cctype>
#include <cstdio>
#include <cstdlib>
#include <map>
#include <optional>
#include <string>

#include "drivers/nv/program.h"
#include "tests/unit/nv/nvrtc_probe.h"

namespace bm::nv {
namespace {

using testing::Nvrtc;

constexpr const char* kSource = R"cuda(
__constant__ float table[16] = {1, 2, 3};
__device__ int counter = 7;
__device__ int zeros[100];
__device__ int* pointer = &counter;

extern "C" __global__ void empty() {}

extern "C" __global__ void add(float* c, const float* a, const float* b, int n) {
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < n) c[i] = a[i] + b[i];
}

extern "C" __global__ void __launch_bounds__(256) many(float* out, const float* in, int n, double s) {
  __shared__ float tile[256];
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  tile[threadIdx.x] = in[i] * table[threadIdx.x & 15];
  __syncthreads();
  float local[64];
  for (int k = 0; k < 64; k++) local[k] = tile[(threadIdx.x + k * n) & 255];
  float sum = 0;
  for (int k = 0; k < n; k++) sum += local[(k * n) & 63];
  if (i == 0) { atomicAdd(&counter, 1); zeros[n & 63] = *pointer; }
  out[i] = sum + (float)sin(s);
}

extern "C" __global__ void big_shared(float* p) {
  __shared__ float tile[10 * 1024 + 3];
  for (int k = threadIdx.x; k < 10 * 1024 + 3; k += blockDim.x) tile[k] = p[k];
  __syncthreads();
  p[threadIdx.x] = tile[(threadIdx.x * 77) % (10 * 1024 + 3)];
}

extern "C" __global__ void dynamic_shared(int* p) {
  extern __shared__ int s[];
  s[threadIdx.x] = p[0];
  __syncthreads();
  p[1] = s[threadIdx.x ^ 1];
}

extern "C" __global__ void barriers(int* p) {
  asm volatile("bar.sync 5, 64;");
  p[threadIdx.x] = 1;
}

extern "C" __global__ void spilling(const float* in, float* out) {
  float v[260];
  for (int k = 0; k < 260; k++) v[k] = in[k * 32 + threadIdx.x];
  for (int r = 0; r < 3; r++)
    for (int k = 0; k < 260; k++) v[k] = v[k] * v[(k + 7 * r + 1) % 260] + v[(k + 150) % 260];
  for (int k = 0; k < 260; k++) out[k * 32 + threadIdx.x] = v[k];
}

extern "C" __global__ void choose(int* p, int n) {
  switch (n) {
    case 0: p[0] = 3; break;
    case 1: p[1] = p[4] * 7; break;
    case 2: p[2] = p[1]; break;
    case 3: p[7] = 1; break;
    case 4: p[3] = n * n; break;
    case 5: p[9] = p[0] / n; break;
    case 6: p[3] = p[2] / p[1]; break;
    case 7: p[1] = p[2] % p[3]; break;
  }
}

struct Pair { char c; double d; };
extern "C" __global__ void parameters(char a, double b, short c, Pair d, long long* e) {
  *e = a + (long long)b + c + d.c + (long long)d.d;
}

__device__ __noinline__ int deep(int n) { return n < 2 ? n : deep(n - 1) + deep(n - 2); }
extern "C" __global__ void recurses(int* p, int n) { p[0] = deep(n); }

#if __CUDA_ARCH__ >= 900
extern "C" __global__ void __cluster_dims__(2, 1, 1) clustered(int* p) { p[blockIdx.x] = 1; }
#endif
)cuda";

/// What the toolkit says of one kernel.
struct Report {
  uint32_t registers = 0, barriers = 0, stack = 0, shared = 0;
  std::optional<uint32_t> bank0, bank2;
};

/// Number in front of `unit` in `line`, if there.
std::optional<uint32_t> number_before(const std::string& line, const std::string& unit) {
  const size_t end = line.find(unit);
  if (end == line.npos) return std::nullopt;
  size_t begin = end;
  while (begin > 0 && (line[begin - 1] == ' ')) --begin;
  while (begin > 0 && std::isdigit(static_cast<unsigned char>(line[begin - 1])) != 0) --begin;
  return static_cast<uint32_t>(std::strtoul(line.c_str() + begin, nullptr, 10));
}

std::map<std::string, Report> read_report(const std::string& log) {
  std::map<std::string, Report> reports;
  std::string kernel, function;
  size_t at = 0;
  while (at < log.size()) {
    const size_t end = std::min(log.find('\n', at), log.size());
    const std::string line = log.substr(at, end - at);
    at = end + 1;
    const std::string entry = "entry function '", properties = "Function properties for ";
    if (const size_t name = line.find(entry); name != line.npos) {
      kernel = line.substr(name + entry.size());
      kernel.resize(kernel.find('\''));
    } else if (const size_t of = line.find(properties); of != line.npos) {
      function = line.substr(of + properties.size());
    } else if (line.find("bytes stack frame") != line.npos) {
      if (function == kernel) reports[kernel].stack = *number_before(line, "bytes stack frame");
    } else if (line.find("Used ") != line.npos) {
      Report& report = reports[kernel];
      report.registers = number_before(line, "registers").value_or(0);
      report.barriers = number_before(line, "barriers").value_or(0);
      report.shared = number_before(line, "bytes smem").value_or(0);
      report.bank0 = number_before(line, "bytes cmem[0]");
      report.bank2 = number_before(line, "bytes cmem[2]");
      report.stack = number_before(line, "bytes cumulative stack size").value_or(report.stack);
    }
  }
  return reports;
}

/// Which kernels of kSource an architecture has, and where their parameters lie by C's rules.
struct Expected {
  const char* kernel;
  uint32_t first_sm;
  std::vector<Parameter> parameters;
};
const std::vector<Expected>& expected() {
  static const std::vector<Expected> kAll = {
      {"empty", 0, {}},
      {"add", 0, {{0, 8}, {8, 8}, {16, 8}, {24, 4}}},
      {"many", 0, {{0, 8}, {8, 8}, {16, 4}, {24, 8}}},
      {"big_shared", 0, {{0, 8}}},
      {"dynamic_shared", 0, {{0, 8}}},
      {"barriers", 0, {{0, 8}}},
      {"spilling", 0, {{0, 8}, {8, 8}}},
      {"choose", 0, {{0, 8}, {8, 4}}},
      {"parameters", 0, {{0, 1}, {8, 8}, {16, 2}, {24, 16}, {40, 8}}},
      {"recurses", 0, {{0, 8}, {8, 4}}},
      {"clustered", 90, {{0, 8}}},
  };
  return kAll;
}

void check(const Expected& want, const Report& report, const Nvrtc::Output& output, uint32_t sm) {
  SCOPED_TRACE(std::string(want.kernel) + " on sm_" + std::to_string(sm));
  auto image = load_cubin(output.cubin, want.kernel, sm);
  ASSERT_TRUE(image) << image.error().message;
  const KernelInfo& k = image->kernel();
  EXPECT_EQ(k.registers, report.registers);
  EXPECT_EQ(k.barriers, report.barriers);
  // Recursion has no depth that the report could tell.
  const bool recurses = std::string(want.kernel) == "recurses";
  EXPECT_EQ(k.stack_bytes, recurses ? 1024u : report.stack);
  EXPECT_EQ(k.shared_bytes, report.shared + (sm < 80 ? 0 : 1024));
  EXPECT_EQ(k.parameters, want.parameters);
  const uint32_t base = sm < 90 ? 0x160 : sm < 100 ? 0x210 : 0x380;
  EXPECT_EQ(k.param_base, base);
  const uint32_t bytes =
      want.parameters.empty() ? 0 : want.parameters.back().offset + want.parameters.back().bytes;
  EXPECT_EQ(k.param_bytes, bytes);
  EXPECT_EQ(report.bank0.value_or(base + bytes), base + bytes);
  if (report.bank2) {
    EXPECT_EQ((*report.bank2 + 15) / 16 * 16, k.banks[2].bytes);
  }
  EXPECT_EQ(k.cluster.has_value(), std::string(want.kernel) == "clustered");
  if (std::string(want.kernel) == "many") {
    EXPECT_EQ(k.max_threads, 256u);
  }
  EXPECT_TRUE(image->relocate(0x10'0000'0000));
  EXPECT_GE(image->bytes().size(), k.code_offset + k.code_bytes + 4096);
}

class Toolkit : public ::testing::Test {
 protected:
  void SetUp() override {
    std::string why;
    nvrtc_ = Nvrtc::open(why);
    if (nvrtc_ == nullptr) GTEST_SKIP() << why;
  }
  std::unique_ptr<Nvrtc> nvrtc_;
};

TEST_F(Toolkit, FactsEqualItsOwnReportOnEveryArchitecture) {
  size_t compared = 0;
  for (const int number : nvrtc_->architectures()) {
    const auto sm = static_cast<uint32_t>(number);
    if (sm < 75) continue;
    const Nvrtc::Output output = nvrtc_->compile(kSource, "sm_" + std::to_string(sm));
    ASSERT_FALSE(output.cubin.empty()) << output.log;
    const auto reports = read_report(output.log);
    for (const Expected& want : expected()) {
      if (sm < want.first_sm) continue;
      ASSERT_EQ(reports.count(want.kernel), 1u) << output.log;
      check(want, reports.at(want.kernel), output, sm);
      ++compared;
    }
  }
  EXPECT_GE(compared, 50u);
  RecordProperty("compared", static_cast<int>(compared));
  std::printf("nvrtc %s: %zu kernels compared\n", nvrtc_->version().c_str(), compared);
}

TEST_F(Toolkit, SpecificTargetsAreRecognised) {
  const auto all = nvrtc_->architectures();
  for (const int sm : {90, 100, 120}) {
    if (std::find(all.begin(), all.end(), sm) == all.end()) continue;
    const Nvrtc::Output output = nvrtc_->compile(kSource, "sm_" + std::to_string(sm) + "a");
    ASSERT_FALSE(output.cubin.empty()) << output.log;
    const auto image = load_cubin(output.cubin, "add", static_cast<uint32_t>(sm));
    ASSERT_TRUE(image) << image.error().message;
    EXPECT_TRUE(image->kernel().is_sm_specific);
    EXPECT_FALSE(load_cubin(output.cubin, "add", static_cast<uint32_t>(sm) + 3));
  }
}

TEST_F(Toolkit, DevicePrintfIsRefusedByName) {
  const Nvrtc::Output output = nvrtc_->compile(
      "extern \"C\" int printf(const char*, ...);\n"
      "extern \"C\" __global__ void talks(int* p) { printf(\"%d\\n\", *p); }\n",
      "sm_90");
  ASSERT_FALSE(output.cubin.empty()) << output.log;
  const auto image = load_cubin(output.cubin, "talks", 90);
  ASSERT_FALSE(image);
  EXPECT_NE(image.error().message.find("'vprintf'"), std::string::npos) << image.error().message;
}

}  // namespace
}  // namespace bm::nv
