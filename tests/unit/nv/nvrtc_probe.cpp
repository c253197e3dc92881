#include "tests/unit/nv/nvrtc_probe.h"

#include <dlfcn.h>

#include <cstdlib>

namespace bm::nv::testing {

template <class Function>
Function* Nvrtc::function(const char* name) const {
  return reinterpret_cast<Function*>(dlsym(library_, name));
}

std::unique_ptr<Nvrtc> Nvrtc::open(std::string& why) {
  std::vector<std::string> folders;
  for (const char* variable : {"BM_CUDA_PATH", "CUDA_PATH"})
    if (const char* path = std::getenv(variable)) folders.emplace_back(path);
  folders.emplace_back("/usr/local/cuda");
  std::vector<std::string> candidates;
  for (const std::string& folder : folders)
    for (const char* library : {"lib64", "lib"})
      for (const char* major : {"13", "12"})
        candidates.push_back(folder + "/" + library + "/libnvrtc.so." + major);
  for (const char* major : {"13", "12"}) candidates.push_back(std::string("libnvrtc.so.") + major);
  for (const std::string& name : candidates)
    // Never closed: the library's own threads outlive a handle.
    if (void* library = dlopen(name.c_str(), RTLD_NOW | RTLD_LOCAL))
      return std::unique_ptr<Nvrtc>(new Nvrtc(library));
  why =
      "needs libnvrtc (CUDA toolkit 12.4 or later) in CUDA_PATH, /usr/local/cuda or the loader's "
      "path";
  return nullptr;
}

std::string Nvrtc::version() const {
  int major = 0, minor = 0;
  function<int(int*, int*)>("nvrtcVersion")(&major, &minor);
  return std::to_string(major) + "." + std::to_string(minor);
}

std::vector<int> Nvrtc::architectures() const {
  int count = 0;
  function<int(int*)>("nvrtcGetNumSupportedArchs")(&count);
  std::vector<int> result(static_cast<size_t>(count));
  function<int(int*)>("nvrtcGetSupportedArchs")(result.data());
  return result;
}

Nvrtc::Output Nvrtc::compile(const std::string& source, const std::string& arch) const {
  Output output;
  void* program = nullptr;
  if (function<int(void**, const char*, const char*, int, const char* const*, const char* const*)>(
          "nvrtcCreateProgram")(&program, source.c_str(), "kernels.cu", 0, nullptr, nullptr) != 0)
    return output;
  const std::string target = "--gpu-architecture=" + arch;
  const char* options[] = {target.c_str(), "--ptxas-options=-v"};
  const int status =
      function<int(void*, int, const char* const*)>("nvrtcCompileProgram")(program, 2, options);
  size_t size = 0;
  function<int(void*, size_t*)>("nvrtcGetProgramLogSize")(program, &size);
  output.log.resize(size);
  function<int(void*, char*)>("nvrtcGetProgramLog")(program, output.log.data());
  if (status == 0) {
    function<int(void*, size_t*)>("nvrtcGetCUBINSize")(program, &size);
    output.cubin.resize(size);
    function<int(void*, char*)>("nvrtcGetCUBIN")(program,
                                                 reinterpret_cast<char*>(output.cubin.data()));
  }
  function<int(void**)>("nvrtcDestroyProgram")(&program);
  return output;
}

}  // namespace bm::nv::testing
