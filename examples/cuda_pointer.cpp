// Memory of a CUDA program, used as a tensor in place. Says so and ends where there is no CUDA GPU.
#include <cstdio>
#include <vector>

#include "drivers/cuda/api.h"
#include "drivers/cuda/device.h"
#include "runtime/base/env.h"
#include "runtime/device.h"
#include "tensor/exception.h"
#include "tensor/tensor.h"

using namespace bm;

int main() {
  auto opened = runtime::open_device("CUDA");
  if (!opened) {
    std::printf("no CUDA device: %s\n", opened.error().message.c_str());
    return 0;
  }
  runtime::Device& device = **opened;

  // The other program: it allocates in the primary context, as cudaMalloc and PyTorch do.
  const cuda::ApiPtr api = unwrap(cuda::load_api(settings().cuda_library));
  const cuda::NativeHandles handles = cuda::native_handles(device.hal());
  api->cuCtxSetCurrent(static_cast<cuda::CuContext>(handles.context));
  cuda::CuDevicePtr theirs = 0;
  if (api->cuMemAlloc(&theirs, 1024 * sizeof(float)) != cuda::kSuccess) return 1;
  const std::vector<float> ones(1024, 1.0F);
  const auto stream = static_cast<cuda::CuStream>(handles.stream);
  api->cuMemcpyHtoDAsync(theirs, ones.data(), 1024 * sizeof(float), stream);
  api->cuStreamSynchronize(stream);  // its work must be done before ours begins

  {
    Tensor t = Tensor::from_blob(reinterpret_cast<void*>(theirs), {1024}, DType::kF32, "CUDA", {},
                                 hal::ExternalKind::kCudaPointer);
    t.assign(t * 3);  // written where it lies
    std::printf("sum %g\n", static_cast<double>(t.sum().data<float>()[0]));
  }
  unwrap(device.synchronize());  // ours is done before they go on
  api->cuMemFree(theirs);
  return 0;
}
