#pragma once
// Objects of the resource manager, as handles name them.

#include <cstdint>
#include <map>
#include <memory>
#include <vector>

#include <sys/types.h>

#include "tests/sim/nv/channel.h"
#include "tests/sim/nv/gpu.h"

namespace bm::sim::nv {

enum class ObjectKind : uint8_t {
  kClient,
  kDevice,
  kSubdevice,
  kMemory,
  kVirtualMemory,
  kVaSpace,
  kGroup,
  kContextShare,
  kChannel,
  kEngineObject,
  kUsermode,
  kDebugger,
  kEvent,
};

struct Object {
  virtual ~Object() = default;
  uint32_t handle = 0, object_class = 0;
  ObjectKind kind = ObjectKind::kClient;
  Object* parent = nullptr;
  uint32_t gpu = 0;  ///< index; meaningless for the client
};

struct MemoryObject final : Object {
  std::shared_ptr<Backing> backing;
  uint64_t size = 0, page_size = 4096;
  bool is_video = false, is_read_only = false;
  bool is_cpu_mappable = true;
  uint32_t cpu_mappings = 0;
  uint64_t pinned_bytes = 0;  ///< registered memory of the client
};

struct VaSpaceObject final : Object {
  bool is_external = false;
  bool is_registered = false;  ///< the unified memory module has given it page tables
  std::shared_ptr<AddressSpace> space = std::make_shared<AddressSpace>();
};

struct GroupObject final : Object {
  std::shared_ptr<ChannelGroup> group = std::make_shared<ChannelGroup>();
  uint32_t va_space = 0;
  uint32_t channels = 0;    ///< made so far
  bool has_shares = false;  ///< they name context shares
};

struct ContextShareObject final : Object {
  std::shared_ptr<AddressSpace> space;
  bool is_external = false;
  bool is_async = false;
};

struct ChannelObject final : Object {
  std::shared_ptr<Channel> channel;
  bool is_external = false;  ///< address space owned by the unified memory module
  bool is_async = false;     ///< of an asynchronous subcontext
};

struct EngineObject final : Object {};
struct DebuggerObject final : Object {
  uint32_t compute_object = 0;
};

struct EventObject final : Object {
  std::shared_ptr<EventQueue> queue;
  uint32_t index = 0;
  bool is_listening = false;
};

class File;

/// A root client and everything under it, by handle.
struct Client {
  uint32_t handle = 0;
  const File* owner = nullptr;  ///< only this open file (and files registered with it) may use it
  pid_t process = 0;
  uint32_t next_handle = 0xcaf00000;
  std::map<uint32_t, std::unique_ptr<Object>> objects;

  Object* find(uint32_t handle_to_find) {
    const auto found = objects.find(handle_to_find);
    return found == objects.end() ? nullptr : found->second.get();
  }
  template <class T>
  T* find(uint32_t handle_to_find, ObjectKind kind) {
    Object* const object = find(handle_to_find);
    return object != nullptr && object->kind == kind ? static_cast<T*>(object) : nullptr;
  }
};

}  // namespace bm::sim::nv
