// Initialisation, devices, contexts, symbols by name.
#include <dlfcn.h>

#include <array>
#include <cstdio>
#include <cstring>

#include <fmt/format.h>

#include "tests/sim/cuda/driver.h"

namespace bm::sim::cuda {
namespace {

/// Facts of a chip. Source: CUDA programming guide 13.0, technical specifications per compute
/// capability; multiprocessors and cache of the named board by NVIDIA's data sheets.
struct ChipRow {
  unsigned sm;
  const char* name;
  int multiprocessors, shared_per_sm, shared_optin, threads_per_sm, l2_bytes, registers_per_sm;
};
constexpr std::array kChips{
    ChipRow{75, "Fake Tesla T4", 40, 65536, 65536, 1024, 4 << 20, 65536},
    ChipRow{80, "Fake A100", 108, 167936, 166912, 2048, 40 << 20, 65536},
    ChipRow{86, "Fake RTX 3090", 82, 102400, 101376, 1536, 6 << 20, 65536},
    ChipRow{89, "Fake RTX 4090", 128, 102400, 101376, 1536, 72 << 20, 65536},
    ChipRow{90, "Fake H200", 132, 233472, 232448, 2048, 50 << 20, 65536},
    ChipRow{100, "Fake B200", 148, 233472, 232448, 2048, 126 << 20, 65536},
    ChipRow{120, "Fake RTX 5090", 170, 102400, 101376, 1536, 96 << 20, 65536},
};
const ChipRow& chip(unsigned sm) {
  for (const ChipRow& row : kChips)
    if (row.sm == sm) return row;
  return kChips[4];
}

/// CUdevice_attribute by number. False: not an attribute this driver knows.
bool attribute(const Driver& d, int id, int device, int& out) {
  const ChipRow& c = chip(d.knobs.sm);
  const int major = static_cast<int>(d.knobs.sm) / 10, minor = static_cast<int>(d.knobs.sm) % 10;
  switch (id) {
    case 1:
    case 2:
    case 3: out = 1024; return true;
    case 4: out = 64; return true;
    case 5: out = 0x7fffffff; return true;
    case 6:
    case 7: out = 65535; return true;
    case 8: out = 49152; return true;
    case 9: out = 65536; return true;
    case 10: out = 32; return true;
    case 11: out = 0x7fffffff; return true;
    case 12: out = 65536; return true;
    case 13: out = 1980000; return true;
    case 14: out = 512; return true;
    case 15: out = 1; return true;
    case 16: out = c.multiprocessors; return true;
    case 17:
    case 18:
    case 20: out = 0; return true;
    case 19:
    case 31:
    case 41:
    case 78: out = 1; return true;
    case 32: out = d.knobs.ecc != 0; return true;
    case 33: out = 1 + device; return true;
    case 34:
    case 50:
    case 35: out = 0; return true;
    case 36: out = 3201000; return true;
    case 37: out = 6144; return true;
    case 38: out = c.l2_bytes; return true;
    case 39: out = c.threads_per_sm; return true;
    case 40: out = 3; return true;
    case 75: out = major; return true;
    case 76: out = minor; return true;
    case 81: out = c.shared_per_sm; return true;
    case 82: out = c.registers_per_sm; return true;
    case 83:
    case 89:
    case 90:
    case 91:
    case 95:
    case 99:
    case 113:
    case 115: out = 1; return true;
    case 88:
    case 84:
    case 100:
    case 101: out = 0; return true;
    case 92:
    case 93:
    case 94: out = 0; return true;
    case 122:
    case 123: out = d.knobs.mem_ops; return true;
    case 97: out = c.shared_optin; return true;
    case 106: out = 32; return true;
    case 111: out = 1024; return true;
    case 120: out = major >= 9; return true;
    case 127: out = major >= 9; return true;
    default: out = 0; return id > 0 && id < 148;
  }
}

int check_device(const Driver& d, int device) {
  return device >= 0 && device < d.knobs.devices ? kSuccess : kInvalidDevice;
}

Context* new_context(Driver& d, int device, unsigned flags) {
  auto* c = new Context;
  c->device = device;
  c->flags = flags;
  c->null_stream = std::make_unique<Stream>(*c, 0, 0);
  d.contexts.insert(c);
  return c;
}

}  // namespace

BM_FAKE_CUDA cuInit(unsigned flags) {
  Driver& d = Driver::get();
  const std::lock_guard lock(d.mutex);
  if (const int code = begin_call(d, "cuInit")) return code;
  if (flags) return kInvalidValue;
  if (d.knobs.init) return d.knobs.init;
  if (d.knobs.devices <= 0) return kNoDevice;
  d.is_initialized = true;
  d.primaries.resize(static_cast<size_t>(d.knobs.devices));
  d.primary_users.resize(static_cast<size_t>(d.knobs.devices));
  return kSuccess;
}
/// Works without cuInit and without a device.
BM_FAKE_CUDA cuDriverGetVersion(int* version) {
  Driver& d = Driver::get();
  const std::lock_guard lock(d.mutex);
  if (const int code = begin_call(d, "cuDriverGetVersion")) return code;
  if (!version) return kInvalidValue;
  *version = d.knobs.version;
  return kSuccess;
}

BM_FAKE_CUDA cuDeviceGetCount(int* count) {
  return call("cuDeviceGetCount", [&](Driver& d) -> int {
    if (!count) return kInvalidValue;
    *count = d.knobs.devices;
    return kSuccess;
  });
}
BM_FAKE_CUDA cuDeviceGet(int* device, int ordinal) {
  return call("cuDeviceGet", [&](Driver& d) -> int {
    if (!device) return kInvalidValue;
    *device = ordinal;
    return check_device(d, ordinal);
  });
}
BM_FAKE_CUDA cuDeviceGetName(char* name, int bytes, int device) {
  return call("cuDeviceGetName", [&](Driver& d) -> int {
    if (!name || bytes <= 0) return kInvalidValue;
    if (const int code = check_device(d, device)) return code;
    std::snprintf(name, static_cast<size_t>(bytes), "%s", chip(d.knobs.sm).name);
    return kSuccess;
  });
}
BM_FAKE_CUDA cuDeviceGetUuid_v2(unsigned char* uuid, int device) {
  return call("cuDeviceGetUuid_v2", [&](Driver& d) -> int {
    if (!uuid) return kInvalidValue;
    if (const int code = check_device(d, device)) return code;
    for (int i = 0; i < 16; ++i) uuid[i] = static_cast<unsigned char>(0xf0 + device);
    return kSuccess;
  });
}
BM_FAKE_CUDA cuDeviceGetUuid(unsigned char* uuid, int device) {
  return cuDeviceGetUuid_v2(uuid, device);
}
BM_FAKE_CUDA cuDeviceTotalMem_v2(size_t* bytes, int device) {
  return call("cuDeviceTotalMem_v2", [&](Driver& d) -> int {
    if (!bytes) return kInvalidValue;
    *bytes = d.knobs.memory;
    return check_device(d, device);
  });
}
BM_FAKE_CUDA cuDeviceGetAttribute(int* value, int id, int device) {
  return call("cuDeviceGetAttribute", [&](Driver& d) -> int {
    if (!value) return kInvalidValue;
    if (const int code = check_device(d, device)) return code;
    return attribute(d, id, device, *value) ? kSuccess : kInvalidValue;
  });
}
BM_FAKE_CUDA cuDeviceComputeCapability(int* major, int* minor, int device) {
  return call("cuDeviceComputeCapability", [&](Driver& d) -> int {
    if (!major || !minor) return kInvalidValue;
    *major = static_cast<int>(d.knobs.sm) / 10;
    *minor = static_cast<int>(d.knobs.sm) % 10;
    return check_device(d, device);
  });
}
BM_FAKE_CUDA cuDeviceGetPCIBusId(char* text, int bytes, int device) {
  return call("cuDeviceGetPCIBusId", [&](Driver& d) -> int {
    if (!text || bytes <= 0) return kInvalidValue;
    if (const int code = check_device(d, device)) return code;
    std::snprintf(text, static_cast<size_t>(bytes), "0000:%02X:00.0", 1 + device);
    return kSuccess;
  });
}
BM_FAKE_CUDA cuDeviceCanAccessPeer(int* can, int device, int peer) {
  return call("cuDeviceCanAccessPeer", [&](Driver& d) -> int {
    if (!can) return kInvalidValue;
    if (check_device(d, device) || check_device(d, peer)) return kInvalidDevice;
    *can = device != peer && d.knobs.peers;
    return kSuccess;
  });
}

BM_FAKE_CUDA cuDevicePrimaryCtxRetain(void** context, int device) {
  return call("cuDevicePrimaryCtxRetain", [&](Driver& d) -> int {
    if (!context) return kInvalidValue;
    if (const int code = check_device(d, device)) return code;
    const auto i = static_cast<size_t>(device);
    if (!d.primaries[i]) {
      d.primaries[i] = new_context(d, device, 0);
      d.primaries[i]->is_primary = true;
      d.primary_users[i] = 0;
    }
    ++d.primary_users[i];
    *context = d.primaries[i];
    return kSuccess;
  });
}
BM_FAKE_CUDA cuDevicePrimaryCtxRelease_v2(int device) {
  return call("cuDevicePrimaryCtxRelease_v2", [&](Driver& d) -> int {
    if (const int code = check_device(d, device)) return code;
    const auto i = static_cast<size_t>(device);
    if (!d.primaries[i]) return kInvalidContext;
    if (--d.primary_users[i] == 0) d.destroy_context(d.primaries[i]);
    return kSuccess;
  });
}
BM_FAKE_CUDA cuDevicePrimaryCtxReset_v2(int device) {
  return call("cuDevicePrimaryCtxReset_v2", [&](Driver& d) -> int {
    if (const int code = check_device(d, device)) return code;
    if (Context* c = d.primaries[static_cast<size_t>(device)]) d.destroy_context(c);
    return kSuccess;
  });
}
BM_FAKE_CUDA cuDevicePrimaryCtxGetState(int device, unsigned* flags, int* active) {
  return call("cuDevicePrimaryCtxGetState", [&](Driver& d) -> int {
    if (!flags || !active) return kInvalidValue;
    if (const int code = check_device(d, device)) return code;
    const Context* c = d.primaries[static_cast<size_t>(device)];
    *active = c != nullptr;
    *flags = c ? c->flags : 0;
    return kSuccess;
  });
}
BM_FAKE_CUDA cuDevicePrimaryCtxSetFlags_v2(int device, unsigned) {
  return call("cuDevicePrimaryCtxSetFlags_v2", [&](Driver& d) { return check_device(d, device); });
}

BM_FAKE_CUDA cuCtxCreate_v2(void** context, unsigned flags, int device) {
  return call("cuCtxCreate_v2", [&](Driver& d) -> int {
    if (!context) return kInvalidValue;
    if (const int code = check_device(d, device)) return code;
    Context* c = new_context(d, device, flags);
    context_stack().push_back(c);
    *context = c;
    return kSuccess;
  });
}
/// CUDA 13: creation parameters (affinity) come second.
BM_FAKE_CUDA cuCtxCreate_v4(void** context, void*, unsigned flags, int device) {
  return cuCtxCreate_v2(context, flags, device);
}
BM_FAKE_CUDA cuCtxDestroy_v2(void* context) {
  return call("cuCtxDestroy_v2", [&](Driver& d) -> int {
    auto* c = static_cast<Context*>(context);
    if (!d.contexts.contains(c) || c->is_primary) return kInvalidContext;
    std::erase(context_stack(), c);
    d.destroy_context(c);
    return kSuccess;
  });
}
BM_FAKE_CUDA cuCtxSetCurrent(void* context) {
  return call("cuCtxSetCurrent", [&](Driver& d) -> int {
    auto* c = static_cast<Context*>(context);
    if (c && !d.contexts.contains(c)) return kInvalidContext;
    if (!context_stack().empty()) context_stack().pop_back();
    if (c) context_stack().push_back(c);
    return kSuccess;
  });
}
BM_FAKE_CUDA cuCtxGetCurrent(void** context) {
  return call("cuCtxGetCurrent", [&](Driver&) -> int {
    if (!context) return kInvalidValue;
    *context = current_context();
    return kSuccess;
  });
}
BM_FAKE_CUDA cuCtxPushCurrent_v2(void* context) {
  return call("cuCtxPushCurrent_v2", [&](Driver& d) -> int {
    auto* c = static_cast<Context*>(context);
    if (!d.contexts.contains(c)) return kInvalidContext;
    context_stack().push_back(c);
    return kSuccess;
  });
}
BM_FAKE_CUDA cuCtxPopCurrent_v2(void** context) {
  return call("cuCtxPopCurrent_v2", [&](Driver&) -> int {
    if (context_stack().empty()) return kInvalidContext;
    if (context) *context = current_context();
    context_stack().pop_back();
    return kSuccess;
  });
}
BM_FAKE_CUDA cuCtxGetDevice(int* device) {
  return call("cuCtxGetDevice", [&](Driver&) -> int {
    if (!device) return kInvalidValue;
    if (!current_context()) return kInvalidContext;
    *device = current_context()->device;
    return kSuccess;
  });
}
BM_FAKE_CUDA cuCtxGetApiVersion(void*, unsigned* version) {
  return call("cuCtxGetApiVersion", [&](Driver&) -> int {
    if (!version) return kInvalidValue;
    *version = 3020;
    return kSuccess;
  });
}
BM_FAKE_CUDA cuCtxGetStreamPriorityRange(int* least, int* greatest) {
  return in_context("cuCtxGetStreamPriorityRange", [&](Driver&, Context&) -> int {
    if (least) *least = 0;
    if (greatest) *greatest = -5;
    return kSuccess;
  });
}
BM_FAKE_CUDA cuCtxSynchronize() {
  Context* c = nullptr;
  const int code = in_context("cuCtxSynchronize", [&](Driver&, Context& found) -> int {
    c = &found;
    return kSuccess;
  });
  return code ? code : drain(*c);
}
BM_FAKE_CUDA cuCtxEnablePeerAccess(void* peer, unsigned flags) {
  return in_context("cuCtxEnablePeerAccess", [&](Driver& d, Context& c) -> int {
    auto* other = static_cast<Context*>(peer);
    if (flags) return kInvalidValue;
    if (!d.contexts.contains(other) || other == &c) return kInvalidContext;
    if (!d.knobs.peers || other->device == c.device) return kPeerAccessUnsupported;
    const std::lock_guard lock(c.peer_mutex);
    return c.peers.insert(other->device).second ? kSuccess : kPeerAccessAlreadyEnabled;
  });
}
BM_FAKE_CUDA cuCtxDisablePeerAccess(void* peer) {
  return in_context("cuCtxDisablePeerAccess", [&](Driver& d, Context& c) -> int {
    auto* other = static_cast<Context*>(peer);
    if (!d.contexts.contains(other)) return kInvalidContext;
    const std::lock_guard lock(c.peer_mutex);
    return c.peers.erase(other->device) ? kSuccess : kPeerAccessNotEnabled;
  });
}

/// Newest exported version of the name: "cuMemAlloc" is cuMemAlloc_v2, as for any recent header.
BM_FAKE_CUDA cuGetProcAddress_v2(const char* symbol, void** function, int, uint64_t, int* status) {
  if (!symbol || !function) return kInvalidValue;
  Dl_info self{};
  dladdr(reinterpret_cast<const void*>(&cuInit), &self);
  void* handle = dlopen(self.dli_fname, RTLD_NOW | RTLD_NOLOAD);
  *function = nullptr;
  for (const char* suffix : {"_v4", "_v3", "_v2", ""})
    if (handle && !*function) *function = dlsym(handle, (std::string(symbol) + suffix).c_str());
  if (handle) dlclose(handle);
  if (status) *status = *function ? 0 : 1;  // found, or no such symbol
  return *function ? kSuccess : kNotFound;
}
/// Private tables of functions, starting with their size. NVRTC 13 asks a driver library that is
/// loaded for one and looks only at its size, even when told there is none: so one that ends there.
BM_FAKE_CUDA cuGetExportTable(const void** table, const void*) {
  static constexpr uint64_t kEmpty[] = {sizeof(uint64_t)};
  if (!table) return kInvalidValue;
  *table = kEmpty;
  return kSuccess;
}
BM_FAKE_CUDA cuGetProcAddress(const char* symbol, void** function, int version, uint64_t flags) {
  return cuGetProcAddress_v2(symbol, function, version, flags, nullptr);
}

}  // namespace bm::sim::cuda
