#pragma once
// The one list of environment variables. Values are read once into an immutable Settings snapshot.

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "runtime/base/result.h"

namespace bm {

/// Typed values of every variable; the initialisers are the defaults. What each one means is in
/// the table of env.cpp, which `bellmetal env` prints.
struct Settings {
  std::string dev;                    ///< DEV
  int debug = 0;                      ///< DEBUG
  int jit = 1;                        ///< JIT
  bool lru = true;                    ///< LRU
  std::string log;                    ///< BM_LOG
  uint32_t threads = 0;               ///< BM_THREADS; 0: one per core this process may use
  bool pin = false;                   ///< BM_PIN
  std::string cache_dir;              ///< BM_CACHE_DIR, resolved; empty when there is no home
  bool cache = true;                  ///< BM_CACHE
  bool checked = false;               ///< BM_CHECKED
  bool poison = false;                ///< BM_POISON
  uint32_t tune = 0;                  ///< BM_TUNE; 0: no search
  uint32_t tune_ms = 2'000;           ///< BM_TUNE_MS
  std::string bundle;                 ///< BM_BUNDLE; several separated by ':'
  std::string plugin_dir;             ///< BM_PLUGIN_DIR
  std::string clang;                  ///< BM_CLANG; empty: the first of several in PATH
  uint64_t memory_cap = 0;            ///< BM_MEMORY_CAP, bytes; 0: none
  uint64_t pool_soft_cap = 0;         ///< BM_POOL_SOFT_CAP, bytes; 0: none
  uint32_t wait_timeout_ms = 30'000;  ///< BM_WAIT_TIMEOUT_MS
  std::string cl_library;             ///< BM_CL_LIBRARY; empty: libOpenCL.so.1
  int cl_svm = 2;                     ///< BM_CL_SVM
  std::string nv_code;                ///< BM_NV_CODE: empty or "ptx"
  std::string nv_launch;              ///< BM_NV_LAUNCH; empty: what the chip wants
  bool nv_wgmma = true;               ///< BM_NV_WGMMA
  uint64_t nv_window = 0;             ///< BM_NV_WINDOW; 0: the driver's choice
  std::string nv_version;             ///< BM_NV_VERSION; empty: what the driver says
  bool amd_cumode = true;             ///< BM_AMD_CUMODE
  std::string amd_queue;              ///< BM_AMD_QUEUE: empty, "pm4" or "aql"
  uint32_t amd_priority = 7;          ///< BM_AMD_PRIORITY
  uint64_t amd_window = 0;            ///< BM_AMD_WINDOW; 0: wherever there is room
  std::string amd_dump;               ///< BM_AMD_DUMP; empty: none
  std::string amd_experimental;       ///< BM_AMD_EXPERIMENTAL; empty: none
  uint32_t amd_power_limit = 0;       ///< BM_AMD_POWER_LIMIT, watts; 0: as it is
  std::string firmware_dir;           ///< BM_FIRMWARE_DIR; several separated by ':'
  std::string pci;                    ///< BM_PCI; several separated by ','
  bool unsafe_noiommu = false;        ///< BM_UNSAFE_NOIOMMU
  bool keep_weights = false;          ///< BM_KEEP_WEIGHTS
  std::string cuda_library;           ///< BM_CUDA_LIBRARY; empty: libcuda.so.1 and usual places
  std::string cuda_path;              ///< CUDA_PATH
  std::string profile;                ///< BM_PROFILE
  uint64_t seed = 0;                  ///< BM_SEED
  bool has_seed = false;              ///< BM_SEED is set
  bool no_color = false;              ///< NO_COLOR
  bool allow_tf32 = false;            ///< ALLOW_TF32
  bool round_activations = true;      ///< BM_ROUND_ACTIVATIONS
  bool no_memory_planner = false;     ///< NO_MEMORY_PLANNER
  uint64_t max_buffer_size = 0;       ///< MAX_BUFFER_SIZE, bytes; 0: none
};

/// Settings of this thread: the innermost ScopedSetting's, else the process snapshot. The snapshot
/// is taken on first use; a malformed value is reported on stderr once and its default is used.
const Settings& settings();

/// For tests and scopes: changes one variable, on this thread only, until destroyed. Scopes nest
/// and must end in reverse order. An unknown name or malformed value aborts: it is a typo in code.
class ScopedSetting {
 public:
  ScopedSetting(std::string_view name, std::string_view value);
  ~ScopedSetting();
  ScopedSetting(const ScopedSetting&) = delete;
  ScopedSetting& operator=(const ScopedSetting&) = delete;

 private:
  std::unique_ptr<Settings> mine_;
  const Settings* previous_;
};

/// One line of `bellmetal env`.
struct EnvValue {
  std::string name, value, fallback, help;
  std::string source;   ///< "default", "environment" or "scope"
  std::string problem;  ///< why the environment's text was refused; empty if it was not
};
std::vector<EnvValue> all_env();

/// Bytes of "123", "64K", "1.5G", "2GiB", "10MB": binary multiples, letter case ignored.
/// Errors: kInvalidArgument naming the text.
Result<uint64_t> parse_bytes(std::string_view text);

/// Settings from any source of texts, defaults where `lookup` gives nullptr. Errors:
/// kInvalidArgument naming the variable and what it takes. Pure: the snapshot and tests are built
/// on it.
Result<Settings> parse_settings(const char* (*lookup)(const char* name));

}  // namespace bm
