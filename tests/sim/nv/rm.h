#pragma once
// What nvidia.ko refuses, each with the function of open-gpu-kernel-modules 595.45.04 that does
// and, in brackets, the test in tests/unit/sim_nv/rm_test.cpp:
//   calls on the wrong kind of file, of another size, of another client or process (escape.c,
//     nvidia_ioctl(), serverAllocResourceUnderLock())  [ChecksParentsHandlesOwnersAndClasses]
//   classes the chip does not list, wrong parents, handles in use (alloc_free.c,
//     g_gpu_class_list.c, resource_list.h)  [ChecksParentsHandlesOwnersAndClasses]
//   controls of another size than the release's (control.c, _rmapiRmControl())
//     [ControlsWantTheExactSize]
//   a device while no file of the GPU is open (resservResourceFactory())  [PlansFailTheNthCall]
//   a context share or a channel of an externally owned space before that has page tables, unknown
//     flags (kernel_ctxshare.c, kctxshareInitCommon_IMPL())  [ExternallyOwnedSpacesNeed…]
//   a channel in a group that names a space itself, groups where some channels name a share and
//   some
//     do not, another engine than the group's (kernel_channel.c, kchannelConstruct_IMPL())
//     [AChannelInAGroupNamesNoSpace…]
//   copy objects on an asynchronous subcontext unless their engine works in step with graphics, and
//     on another runlist (kernel_fifo_gm107.c, kfifoRunlistSetIdByEngine_GM107();
//     kernel_fifo_gp102.c, kfifoValidateEngineAndSubctxType_GP102())
//     [AsynchronousSubcontextsAreForGraphicsOnly]
//   scheduling a graphics channel of such a space that unified memory does not know
//     (kernel_channel_group_api.c, kchangrpapiCtrlCmdGpFifoSchedule_IMPL(); kernel_channel.c,
//     kchannelIsSchedulable_IMPL())  [UnboundComputeChannelsAreNotScheduled]
//   a second mapping prepared on one file, mapping what was not prepared (nv-usermap.c,
//     nv_add_mapping_context_to_file())  [AFileMapsOnceAndOnlyWhatWasPrepared]
// One call into nvidia.ko: escapes of /dev/nvidiactl and /dev/nvidiaN.
// Source of layouts and checks: open-gpu-kernel-modules 580.142; each function names its model.

#include <cstdint>
#include <string>
#include <vector>

#include "tests/sim/nv/bytes.h"
#include "tests/sim/nv/kernel.h"

namespace bm::sim::nv {

class RmCalls {
 public:
  RmCalls(Kernel& kernel, File& file, const Caller& caller, Effect* effect)
      : kernel_(kernel), file_(file), caller_(caller), effect_(effect) {}

  int ioctl(unsigned long request, uint64_t argument);

 private:
  // rm.cpp: escapes. Each gets the copied-in structure and answers 0 or -errno.
  int dispatch(uint32_t escape, Bytes data);
  int card_info(Bytes data);
  int check_version(Bytes data);
  int register_fd(Bytes data);
  int attach_gpus(Bytes data);
  int alloc(Bytes data);
  int control(Bytes data);
  int free(Bytes data);
  int status_only(Bytes data, size_t size, size_t status_offset, const std::string& name);

  // rm_memory.cpp
  int alloc_memory(Bytes data);
  int map_memory(Bytes data);
  int unmap_memory(Bytes data);
  int alloc_os_event(Bytes data);
  int free_os_event(Bytes data);
  int get_event_data(Bytes data);
  RmStatus register_host_memory(Bytes data);
  RmStatus prepare_mapping(Bytes data);

  // rm_objects.cpp: RM_ALLOC by class.
  struct Request {
    uint32_t client, parent, handle, object_class;
    uint64_t params_address;
  };
  RmStatus allocate(Request& request);
  RmStatus allocate_client(Request& request);
  RmStatus create(Client& client, Object* parent, const Request& request, Bytes params);
  RmStatus create_device(Client& client, const Request& request, Bytes params);
  RmStatus create_memory(Object* parent, const Request& request, Bytes params);
  RmStatus create_group(Client& client, Bytes params);
  RmStatus create_context_share(Client& client, Object* parent, Bytes params);
  RmStatus create_channel(Client& client, Object* parent, const Request& request, Bytes params);
  RmStatus create_engine_object(Object* parent, const Request& request, Bytes params);
  RmStatus create_debugger(Client& client, Bytes params);
  RmStatus create_event(Client& client, Bytes params);
  bool may_use(const Client& client) const;

  // rm_control.cpp
  RmStatus run_control(uint32_t client, uint32_t object, uint32_t command, uint64_t params,
                       uint32_t params_size);
  RmStatus client_control(uint32_t command, Bytes params);
  RmStatus device_control(Object& object, uint32_t command, Bytes params);
  RmStatus subdevice_control(Object& object, uint32_t command, Bytes params);
  RmStatus gr_info(Object& object, Bytes params);
  RmStatus group_control(Client& client, GroupObject& group, uint32_t command, Bytes params);
  RmStatus channel_control(ChannelObject& channel, uint32_t command, Bytes params);
  RmStatus debugger_control(Client& client, DebuggerObject& debugger, uint32_t command,
                            Bytes params);

  Kernel& kernel_;
  File& file_;
  const Caller& caller_;
  Effect* effect_;
  std::unique_ptr<Object> made_;  ///< by the create functions
};

}  // namespace bm::sim::nv
