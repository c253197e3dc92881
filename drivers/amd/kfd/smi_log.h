#pragma once
// The kernel driver's event log in words.

#include <string>
#include <string_view>

namespace bm::amd::kfd {

/// "VM fault of process 4711 (bellmetal); GPU reset 1 begins: the compute ring hung". Lines that
/// are not known stay as they are. Source: Linux 6.12, amdkfd/kfd_smi_events.c;
/// include/uapi/linux/kfd_ioctl.h, KFD_EVENT_FMT_*.
std::string log_in_words(std::string_view lines);

}  // namespace bm::amd::kfd
