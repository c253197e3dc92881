#pragma once
// Status words of NVIDIA's resource manager, as the simulator returns them.
// Source: open-gpu-kernel-modules 580.142, src/common/sdk/nvidia/inc/nvstatuscodes.h.

#include <cstdint>

namespace bm::sim::nv {

enum class RmStatus : uint32_t {
  kOk = 0x00,
  kGpuIsLost = 0x0f,
  kUuidNotFound = 0x12,
  kIllegalAction = 0x16,
  kInUse = 0x17,
  kDuplicateName = 0x19,
  kInsufficientResources = 0x1a,
  kInsufficientPermissions = 0x1b,
  kInvalidAddress = 0x1e,
  kInvalidArgument = 0x1f,
  kInvalidBase = 0x20,
  kInvalidChannel = 0x21,
  kInvalidClass = 0x22,
  kInvalidClient = 0x23,
  kInvalidDevice = 0x26,
  kInvalidEvent = 0x28,
  kInvalidFlags = 0x29,
  kInvalidLimit = 0x2e,
  kInvalidObject = 0x31,
  kInvalidObjectHandle = 0x33,
  kInvalidParent = 0x36,
  kInvalidOffset = 0x37,
  kInvalidParamStruct = 0x3a,
  kInvalidPointer = 0x3d,
  kInvalidState = 0x40,
  kNoMemory = 0x51,
  kNotSupported = 0x56,
  kObjectNotFound = 0x57,
  kOperatingSystem = 0x59,
  kOutOfRange = 0x5b,
  kStateInUse = 0x63,
  kUvmAddressInUse = 0x68,
  kGeneric = 0xffff,
  kNothingToDo = 0x10006,  ///< NV_WARN_NOTHING_TO_DO
};

}  // namespace bm::sim::nv
