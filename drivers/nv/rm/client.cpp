#include "drivers/nv/rm/client.h"

#include <span>

#include "runtime/base/log.h"

namespace bm::nv {

void RmObject::reset() {
  if (handle_ == 0) return;
  const uint32_t handle = std::exchange(handle_, 0);
  if (const Status freed = client_->free(parent_, handle); !freed)
    log("nv", LogLevel::kWarning, "{}", freed.error().message);
}

Result<std::unique_ptr<RmClient>> RmClient::create(RmTransport& transport) {
  constexpr std::string_view kWhat = "RM_ALLOC of the root client";
  const RmAnswer answer =
      BM_TRY(transport.alloc(Stage::kClient, kWhat, {.object_class = abi::kClassClient}));
  if (answer.status != kStatusOk)
    return tl::unexpected(status_error(Stage::kClient, kWhat, answer.status));
  return std::unique_ptr<RmClient>(new RmClient(transport, answer.handle));
}

RmClient::~RmClient() {
  // Closing the descriptor would free it too, but not before the last duplicate of it is closed.
  if (root_ != 0)
    if (const Status freed = free(root_, root_); !freed)
      log("nv", LogLevel::kInfo, "{}", freed.error().message);
}

Result<RmObject> RmClient::allocate(Stage stage, uint32_t parent, uint32_t object_class,
                                    abi::AnyParams* params) {
  const std::string what =
      fmt::format("RM_ALLOC of class {:04x} under {:#x}", object_class, parent);
  const RmAnswer answer = BM_TRY(transport_.alloc(
      stage, what,
      {.client = root_, .parent = parent, .object_class = object_class, .params = params}));
  if (answer.status != kStatusOk) return tl::unexpected(status_error(stage, what, answer.status));
  return RmObject(*this, parent, answer.handle);
}

Status RmClient::control(Stage stage, uint32_t object, uint32_t command, std::string_view what,
                         abi::AnyParams& params, std::span<std::byte> pointed) {
  RmControlCall call{root_, object, command, &params, params.size(), pointed};
  uint32_t status = BM_TRY(transport_.control(stage, what, call));
  // The kernel compares sizes exactly. A release between the known ones may have moved early; the
  // structures with several sizes only grow at their end.
  const bool is_size = status == kStatusInvalidArgument || status == kStatusInvalidParamStruct;
  const std::span<const abi::Layout> all = abi::layouts();
  for (size_t i = 0; is_size && status != kStatusOk && i < all.size(); ++i) {
    if (all[i].id != params.id() || all[i].size == params.size()) continue;
    call.bytes = all[i].size;
    const uint32_t other = BM_TRY(transport_.control(stage, what, call));
    if (other != kStatusOk) continue;
    log("nv", LogLevel::kInfo, "driver {} takes {} with {} bytes, not {}", version(), what,
        all[i].size, params.size());
    status = other;
  }
  if (status != kStatusOk)
    return tl::unexpected(status_error(
        stage, fmt::format("RM_CONTROL {} ({:#x}) of {:#x}", what, command, object), status));
  return {};
}

Status RmClient::free(uint32_t parent, uint32_t handle) {
  const std::string what = fmt::format("RM_FREE of {:#x}", handle);
  const uint32_t status = BM_TRY(transport_.free(Stage::kFree, what, root_, parent, handle));
  if (status != kStatusOk) return tl::unexpected(status_error(Stage::kFree, what, status));
  return {};
}

}  // namespace bm::nv
