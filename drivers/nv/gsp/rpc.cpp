#include "drivers/nv/gsp/rpc.h"

#include <algorithm>
#include <iterator>

namespace bm::nv::gsp {
namespace {

struct Name {
  uint32_t number;
  std::string_view name;
};
constexpr Name kNames[] = {
    {4, "ALLOC_MEMORY"},
    {10, "FREE"},
    {21, "DUP_OBJECT"},
    {47, "UNLOADING_GUEST_DRIVER"},
    {54, "SET_PAGE_DIRECTORY"},
    {65, "GET_GSP_STATIC_INFO"},
    {70, "UPDATE_BAR_PDE"},
    {71, "CONTINUATION_RECORD"},
    {72, "GSP_SET_SYSTEM_INFO"},
    {73, "SET_REGISTRY"},
    {76, "GSP_RM_CONTROL"},
    {79, "UNSET_PAGE_DIRECTORY"},
    {103, "GSP_RM_ALLOC"},
    {0x1001, "GSP_INIT_DONE"},
    {0x1002, "GSP_RUN_CPU_SEQUENCER"},
    {0x1003, "POST_EVENT"},
    {0x1004, "RC_TRIGGERED"},
    {0x1005, "MMU_FAULT_QUEUED"},
    {0x1006, "OS_ERROR_LOG"},
    {0x100c, "UCODE_LIBOS_PRINT"},
    {0x100e, "PERF_GPU_BOOST_SYNC_LIMITS_CALLBACK"},
    {0x101c, "GSP_LOCKDOWN_NOTICE"},
    {0x1020, "GSP_POST_NOCAT_RECORD"},
    {0x1022, "RECOVERY_ACTION"},
};

}  // namespace

std::string rpc_name(uint32_t function_or_event) {
  const auto* const row = std::ranges::find(kNames, function_or_event, &Name::number);
  if (row != std::end(kNames)) return std::string(row->name);
  return function_or_event >= kFirstRpcEvent ? fmt::format("event {:#x}", function_or_event)
                                             : fmt::format("function {}", function_or_event);
}

}  // namespace bm::nv::gsp
