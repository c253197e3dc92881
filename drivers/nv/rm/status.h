#pragma once
// What the resource manager and UVM answer, in words.

#include <cstdint>
#include <string>
#include <string_view>

#include "runtime/base/result.h"

namespace bm::nv {

/// Steps of opening and using a GPU, numbered for reports from users: "stage 26 (channel)".
enum class Stage : uint8_t {
  kOpen = 1,
  kVersion = 2,
  kClient = 3,
  kUvm = 5,
  kCards = 7,
  kDeviceFile = 9,
  kGpuId = 10,
  kDevice = 11,
  kSubdevice = 12,
  kClassList = 14,
  kUsermode = 15,
  kDoorbell = 16,
  kVaSpace = 18,
  kUuid = 19,
  kRegisterGpu = 20,
  kRegisterVaSpace = 21,
  kPeer = 22,
  kGroup = 23,
  kMemory = 24,
  kContextShare = 25,
  kChannel = 26,
  kEngine = 27,
  kDebugger = 28,
  kToken = 29,
  kRegisterChannel = 30,
  kSchedule = 31,
  kMap = 32,
  kFacts = 33,
  kEvent = 35,
  kFree = 36,
};

std::string_view stage_name(Stage stage);

constexpr uint32_t kStatusOk = 0;
constexpr uint32_t kStatusInvalidArgument = 0x1f;
constexpr uint32_t kStatusInvalidParamStruct = 0x3a;
constexpr uint32_t kStatusAddressInUse = 0x68;

/// "NV_ERR_INVALID_CLASS (0x22)"
std::string status_text(uint32_t status);

/// The failure of `call` (with what it was called on) at `stage`, with a remedy where one is known.
/// `status`: what the call answered.
Error status_error(Stage stage, std::string_view call, uint32_t status);

/// The kernel refused the call as such: `error_number` is positive.
Error errno_error(Stage stage, std::string_view call, int error_number);

}  // namespace bm::nv
