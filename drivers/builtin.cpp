// The table of drivers in this build: the only file that names them all.

#include "drivers/amd/device.h"
#include "drivers/cl/device.h"
#include "drivers/cpu/device.h"
#include "drivers/cuda/device.h"
#include "drivers/null/device.h"
#include "drivers/nv/device.h"
#include "drivers/ref/device.h"
#include "runtime/hal/device.h"

namespace bm::hal {
namespace {

// Rows without interfaces at all (nullptr) are no pieces of hardware: any number of them can be
// opened, "CPU:1" and "CPU:2" for programs that are written for several devices.
// In order of preference. The CPU always opens, so rows below it are only taken when named:
// NULL and REF must never become the default device.
constexpr DriverInfo kDrivers[] = {
    {.name = "CPU",
     .interfaces = nullptr,
     .renderers = "LLVM CLANG",
     .help =
         "always there; compiling kernels needs the LLVM component (package libllvm19) or clang",
     .count = cpu::count_devices,
     .open = cpu::open_device},
    {.name = "NV",
     .interfaces = "NVK PCI",
     .renderers = "NVRTC PTX LLVM",
     .help =
         "an NVIDIA GPU of Turing or later with NVIDIA's kernel driver, release 535 or later "
         "(/dev/nvidiactl, /dev/nvidia0, /dev/nvidia-uvm must be there and writable); compiling "
         "kernels needs libnvrtc of the CUDA toolkit. DEV=NV:PCI boots a card that no kernel "
         "driver "
         "has (BM_PCI)",
     .count = nv::count_devices,
     .open = nv::open_device,
     .booting = "PCI"},
    {.name = "AMD",
     .interfaces = "KFD PCI USB",
     .renderers = "LLVM HIP",
     .help = "an AMD GPU of gfx9.4, gfx10.3, gfx11 or gfx12 with the amdgpu kernel driver of Linux "
             "6.1 or "
             "later; /dev/kfd and /dev/dri/renderD* must be there and writable (group render). "
             "DEV=AMD:PCI boots a card that no kernel driver has (BM_PCI)",
     .count = amd::count_devices,
     .open = amd::open_device,
     .booting = "PCI USB"},
    {.name = "CUDA",
     .interfaces = "",
     .renderers = "NVRTC PTX LLVM",
     .help = "CUDA: the NVIDIA driver with libcuda.so.1 (Debian: libcuda1), and access to "
             "/dev/nvidia*",
     .count = cuda::count_devices,
     .open = cuda::open_device},
    {.name = "CL",
     .interfaces = "",
     .renderers = "OPENCL",
     .help = "OpenCL: package ocl-icd-libopencl1 and a driver for it, e.g. pocl-opencl-icd or the "
             "vendor's ICD",
     .count = cl::count_devices,
     .installed = cl::installed,
     .open = cl::open_device},
    {.name = "NULL",
     .interfaces = nullptr,
     .renderers = "AUTO LLVM CLANG NVRTC PTX HIP",
     .help = "does no work; only when named, e.g. DEV=NULL, or DEV=NULL::gfx1100 and "
             "DEV=NULL:PTX::sm_90 to compile for another target",
     .count = null::count_devices,
     .open = null::open_device},
    {.name = "REF",
     .interfaces = nullptr,
     .renderers = "",
     .help = "reference results by host functions; only when named, e.g. DEV=REF",
     .count = ref::count_devices,
     .open = ref::open_device},
};

}  // namespace

std::span<const DriverInfo> builtin_drivers() { return kDrivers; }

}  // namespace bm::hal
