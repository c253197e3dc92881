#pragma once
// The toolkit's run-time compiler as tests use it: cubin and ptxas report of a source.

#include <cstddef>
#include <memory>
#include <string>
#include <vector>

namespace bm::nv::testing {

class Nvrtc {
 public:
  struct Output {
    std::vector<std::byte> cubin;  ///< empty: refused, see `log`
    std::string log;
  };
  /// Looks in CUDA_PATH, /usr/local/cuda and the loader's own places. Null: `why` says what was
  /// tried.
  static std::unique_ptr<Nvrtc> open(std::string& why);

  std::string version() const;
  std::vector<int> architectures() const;
  /// `arch`: "sm_90a".
  Output compile(const std::string& source, const std::string& arch) const;

 private:
  explicit Nvrtc(void* library) : library_(library) {}
  template <class Function>
  Function* function(const char* name) const;
  void* library_ = nullptr;
};

}  // namespace bm::nv::testing
