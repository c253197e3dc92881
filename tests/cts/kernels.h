#pragma once
// The kernels every device with programs brings: kernels.c for the CPU, kernels.cl for OpenCL, one
// more text per instruction set. This table is what they agree on.

#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>

#include "runtime/base/result.h"
#include "runtime/hal/device.h"

namespace bm::cts {

/// Arguments are 64-bit words (runtime/hal/program.h): buffer addresses, then variables as int64.
/// Item i of a launch is thread i of the grid, counted over blocks of kBlock threads; a device
/// without work-groups (Arch::max_block 1) runs a block's items in a loop.
struct KernelRow {
  std::string_view name;
  uint32_t buffers, vars;
  uint32_t threads;        ///< of one block where there are work-groups
  uint64_t host_work;      ///< CodeObject::work_per_block on the CPU
  std::string_view about;  ///< arguments in order: what it does
};

inline constexpr uint32_t kBlock = 64;

inline constexpr KernelRow kKernelTable[] = {
    {"saxpy", 3, 2, kBlock, 64, "out, x, y, n, bits of a: out[i] = a * x[i] + y[i], float, i < n"},
    {"iota", 1, 2, kBlock, 64, "out, n, start: out[i] = start + i, int64, i < n"},
    {"look_up", 2, 1, kBlock, 64,
     "out, in, n: out[i] = 1000 + (i odd ? square : prime) number in[i] % 8, int32, i < n"},
    {"sines", 2, 1, kBlock, 640, "out, in, n: out[i] = sin(in[i]), float, i < n"},
    {"move", 2, 1, kBlock, 100, "out, in, bytes: copies, all in one block"},
    {"increment", 1, 1, kBlock, 16, "x, n: x[i] += 1, float, i < n"},
    {"fold", 2, 1, kBlock, 64, "out, in, by: out[i] = out[i] * 3 + in[i] + by, uint64, every i"},
    // Declared expensive, so that large grids take the CPU's pool.
    {"mark", 1, 0, 1, 10'000, "counts: each block adds 1 to its own uint32, x fastest, then y, z"},
    {"undefined", 1, 0, 1, 1, "calls system(), which no kernel may; where code is linked at load"},
};

/// Code object of a row around what a compiler made of it: everything but image and grid comes from
/// the table and the device. Errors: kNotFound.
Result<hal::CodeObject> make_code(std::string_view name, const hal::Device& device,
                                  std::span<const std::byte> image);
/// Bytes of a file. Errors: kNotFound.
Result<std::vector<std::byte>> read_image(const char* path);

/// The kernels for the CPU.
Result<hal::CodeObject> host_kernel(std::string_view name, const hal::Device& device);
/// Opens unit 0 of a driver of this build by its name.
Result<std::unique_ptr<hal::Device>> open_driver(std::string_view name);

}  // namespace bm::cts
