#pragma once
// The kernel driver's event log and its lines in the kernel's log, in words.

#include <string>
#include <string_view>

namespace bm::amd::kfd {

/// "VM fault of process 4711 (bellmetal); GPU reset 1 begins: the compute ring hung". Lines that
/// are not known stay as they are. Source: Linux 6.12, amdkfd/kfd_smi_events.c;
/// include/uapi/linux/kfd_ioctl.h, KFD_EVENT_FMT_*.
std::string log_in_words(std::string_view lines);

/// What amdgpu wrote into the kernel's log about errors of waves and page faults after `since_ns`
/// (CLOCK_MONOTONIC), the latest first; at most three. Empty where there is nothing.
/// Source: Linux 6.12, amdkfd/kfd_int_process_v10.c and _v11.c, print_sq_intr_info_error().
std::string errors_in_words(std::string_view kernel_log, int64_t since_ns);

}  // namespace bm::amd::kfd
