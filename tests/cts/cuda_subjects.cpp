// CUDA without a GPU: on the fake libcuda.so.1, which executes PTX, and on a driver inside this
// program whose kernels are functions of C++, with each way signals and graphs may be done.

#include <bit>
#include <cmath>
#include <cstdlib>
#include <cstring>

#include "drivers/cuda/device.h"
#include "runtime/base/env.h"
#include "tests/cts/cts.h"
#include "tests/cts/kernels.h"
#include "tests/unit/cuda/fake_driver.h"

namespace bm::cts {
namespace {

using cuda::test::fake;
using cuda::test::FakeDriver;

template <class T>
T* at(uint64_t address) {
  return reinterpret_cast<T*>(address);
}
/// `item(i)` for every thread of a launch of blocks of kBlock, below `count`.
template <class Item>
void each(hal::Dim3 grid, uint64_t count, const Item& item) {
  const uint64_t all = uint64_t{grid.x} * kBlock;
  for (uint64_t i = 0; i < std::min(all, count); ++i) item(i);
}

/// The table of kernels.h.
void add_kernels(FakeDriver& driver) {
  auto& kernels = driver.kernels;
  kernels["saxpy"] = [](FakeDriver&, const uint64_t* a, hal::Dim3 grid) {
    const auto factor = std::bit_cast<float>(static_cast<uint32_t>(a[4]));
    each(grid, a[3], [&](uint64_t i) {
      const float product = factor * at<float>(a[1])[i];
      at<float>(a[0])[i] = product + at<float>(a[2])[i];
    });
  };
  kernels["iota"] = [](FakeDriver&, const uint64_t* a, hal::Dim3 grid) {
    each(grid, a[1], [&](uint64_t i) { at<uint64_t>(a[0])[i] = a[2] + i; });
  };
  kernels["look_up"] = [](FakeDriver&, const uint64_t* a, hal::Dim3 grid) {
    constexpr int32_t kPrimes[] = {2, 3, 5, 7, 11, 13, 17, 19};
    each(grid, a[2], [&](uint64_t i) {
      const int32_t row = at<int32_t>(a[1])[i] & 7;
      at<int32_t>(a[0])[i] = 1000 + (i % 2 != 0 ? row * row : kPrimes[row]);
    });
  };
  kernels["sines"] = [](FakeDriver&, const uint64_t* a, hal::Dim3 grid) {
    each(grid, a[2], [&](uint64_t i) { at<float>(a[0])[i] = std::sin(at<float>(a[1])[i]); });
  };
  kernels["move"] = [](FakeDriver&, const uint64_t* a, hal::Dim3) {
    std::memcpy(at<void>(a[0]), at<void>(a[1]), a[2]);
  };
  kernels["increment"] = [](FakeDriver&, const uint64_t* a, hal::Dim3 grid) {
    each(grid, a[1], [&](uint64_t i) { at<float>(a[0])[i] += 1.0f; });
  };
  kernels["fold"] = [](FakeDriver&, const uint64_t* a, hal::Dim3 grid) {
    each(grid, UINT64_MAX, [&](uint64_t i) {
      uint64_t& out = at<uint64_t>(a[0])[i];
      out = out * 3 + at<uint64_t>(a[1])[i] + a[2];
    });
  };
  kernels["mark"] = [](FakeDriver&, const uint64_t* a, hal::Dim3 grid) {
    const uint64_t blocks = uint64_t{grid.x} * grid.y * grid.z;
    for (uint64_t i = 0; i < blocks; ++i) at<uint32_t>(a[0])[i] += 1;
  };
}

/// One driver for the whole run, as a process has.
cuda::ApiPtr api() {
  static const cuda::ApiPtr functions = [] {
    auto made = cuda::test::fake_api();
    add_kernels(fake());
    fake().run_in_background();
    return made;
  }();
  return functions;
}

template <bool kStreamsDoWords, bool kHasGraphs, uint32_t kUnit>
Result<std::unique_ptr<hal::Device>> open() {
  auto functions = std::make_shared<cuda::Api>(*api());
  {
    const std::lock_guard lock(fake().mutex);
    fake().attributes[cuda::kStreamMemOps64] = kStreamsDoWords ? 1 : 0;
  }
  if (!kHasGraphs) functions->cuGraphCreate = nullptr;
  return cuda::open_device_on(std::move(functions), kUnit, "");
}

/// The driver takes any text: what the image says is only checked by name.
Result<hal::CodeObject> any_kernel(std::string_view name, const hal::Device& device) {
  constexpr std::string_view kText = ".version 6.4";
  return make_code(name, device, std::as_bytes(std::span(kText)));
}

#ifdef BM_FAKE_CUDA
template <uint32_t kUnit>
Result<std::unique_ptr<hal::Device>> open_fake() {
  const ScopedSetting library("BM_CUDA_LIBRARY", BM_FAKE_CUDA);
  return cuda::open_device("", kUnit, "");
}

Result<hal::CodeObject> ptx_kernel(std::string_view name, const hal::Device& device) {
  return make_code(name, device, BM_TRY(read_image(BM_PTX_KERNELS)));
}
#endif

}  // namespace

std::vector<Subject> subjects() {
  std::vector<Subject> all;
#ifdef BM_FAKE_CUDA
  setenv("FAKE_CUDA_DEVICES", "2", 1);
  setenv("FAKE_CUDA_QUIET", "1", 1);
  all.push_back({"CUDA_PTX",
                 open_fake<0>,
                 ptx_kernel,
                 {{"dispatch.undefined_symbol", "PTX refuses undeclared names"}},
                 {},
                 open_fake<1>});
#endif
  const std::vector<Exemption> unsupported = {
      {"dispatch.undefined_symbol", "kernels are functions of this program"},
      {"fault.damaged_code", "kernels are functions of this program"}};
  all.push_back({"CUDA", open<true, true, 0>, any_kernel, unsupported, {}, open<true, true, 1>});
  all.push_back(
      {"CUDA_HOST_WORDS", open<false, true, 0>, any_kernel, unsupported, {}, open<false, true, 1>});
  all.push_back(
      {"CUDA_NO_GRAPHS", open<true, false, 0>, any_kernel, unsupported, {}, open<true, false, 1>});
  return all;
}

}  // namespace bm::cts
