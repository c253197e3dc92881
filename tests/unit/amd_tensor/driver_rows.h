#pragma once
// Rows of the tables of drivers that stand in for drivers/builtin.cpp here.

#include "drivers/cpu/device.h"
#include "runtime/hal/device.h"

namespace bm::hal {

inline constexpr DriverInfo kCpuRow{.name = "CPU",
                                    .interfaces = "",
                                    .renderers = "LLVM CLANG",
                                    .help = "",
                                    .count = cpu::count_devices,
                                    .open = cpu::open_device};

constexpr DriverInfo amd_row(const char* interface, decltype(DriverInfo::count) count,
                             decltype(DriverInfo::open) open) {
  return {.name = "AMD",
          .interfaces = interface,
          .renderers = "LLVM HIP",
          .help = "",
          .count = count,
          .open = open};
}

}  // namespace bm::hal
