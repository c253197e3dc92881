#include "tools/bellmetal/bench_opencl.h"

#include <vector>

#include "drivers/cl/api.h"

namespace bm::cli {
namespace {

constexpr size_t kBytes = 16 * sizeof(float);
constexpr const char* kSource =
    "__kernel void add16(__global const float* a, __global const float* b, __global float* out) {"
    "  size_t i = get_global_id(0); out[i] = a[i] + b[i]; }";

}  // namespace

struct OpenClLoop::Impl {
  cl::ApiPtr api;
  cl_context context = nullptr;
  cl_command_queue queue = nullptr;
  cl_program program = nullptr;
  std::vector<cl_kernel> kernels;
  std::vector<cl_mem> chain;
  cl_mem inputs[2] = {};
  uint32_t turn = 0;

  ~Impl() {
    if (queue) api->clFinish(queue);
    for (cl_kernel k : kernels) api->clReleaseKernel(k);
    for (cl_mem m : chain) api->clReleaseMemObject(m);
    for (cl_mem m : inputs)
      if (m) api->clReleaseMemObject(m);
    if (program) api->clReleaseProgram(program);
    if (queue) api->clReleaseCommandQueue(queue);
    if (context) api->clReleaseContext(context);
  }

  Result<cl_device_id> find(uint32_t unit) {
    cl_uint num_platforms = 0;
    BM_TRY(cl::check(api->clGetPlatformIDs(0, nullptr, &num_platforms), "clGetPlatformIDs"));
    std::vector<cl_platform_id> platforms(num_platforms);
    BM_TRY(cl::check(api->clGetPlatformIDs(num_platforms, platforms.data(), nullptr),
                     "clGetPlatformIDs"));
    for (cl_platform_id p : platforms) {
      cl_uint n = 0;
      if (api->clGetDeviceIDs(p, CL_DEVICE_TYPE_ALL, 0, nullptr, &n) != CL_SUCCESS) continue;
      std::vector<cl_device_id> devices(n);
      api->clGetDeviceIDs(p, CL_DEVICE_TYPE_ALL, n, devices.data(), nullptr);
      if (unit < n) return devices[unit];
      unit -= n;
    }
    return fail(Code::kNotFound, "there is no OpenCL device {}", unit);
  }

  Result<cl_mem> buffer() {
    cl_int error = CL_SUCCESS;
    const std::vector<float> ones(16, 1.0F);
    cl_mem m = api->clCreateBuffer(context, CL_MEM_READ_WRITE | CL_MEM_COPY_HOST_PTR, kBytes,
                                   const_cast<float*>(ones.data()), &error);
    BM_TRY(cl::check(error, "clCreateBuffer"));
    return m;
  }

  Status prepare(uint32_t unit, uint32_t count) {
    api = BM_TRY(cl::load_api());
    cl_device_id device = BM_TRY(find(unit));
    cl_int error = CL_SUCCESS;
    context = api->clCreateContext(nullptr, 1, &device, nullptr, nullptr, &error);
    BM_TRY(cl::check(error, "clCreateContext"));
    queue = api->clCreateCommandQueue(context, device, 0, &error);
    BM_TRY(cl::check(error, "clCreateCommandQueue"));
    const char* source = kSource;
    program = api->clCreateProgramWithSource(context, 1, &source, nullptr, &error);
    BM_TRY(cl::check(error, "clCreateProgramWithSource"));
    BM_TRY(cl::check(api->clBuildProgram(program, 1, &device, "", nullptr, nullptr),
                     "clBuildProgram"));
    for (cl_mem& m : inputs) m = BM_TRY(buffer());
    chain.push_back(BM_TRY(buffer()));
    for (uint32_t i = 0; i < count; ++i) {
      chain.push_back(BM_TRY(buffer()));
      cl_kernel k = api->clCreateKernel(program, "add16", &error);
      BM_TRY(cl::check(error, "clCreateKernel"));
      kernels.push_back(k);
      api->clSetKernelArg(k, 0, sizeof(cl_mem), &chain[i]);
      api->clSetKernelArg(k, 1, sizeof(cl_mem), &inputs[0]);
      api->clSetKernelArg(k, 2, sizeof(cl_mem), &chain[i + 1]);
    }
    return {};
  }
};

OpenClLoop::OpenClLoop() : impl_(std::make_unique<Impl>()) {}
OpenClLoop::~OpenClLoop() = default;

Result<std::unique_ptr<OpenClLoop>> OpenClLoop::create(uint32_t unit, uint32_t kernels) {
  std::unique_ptr<OpenClLoop> loop(new OpenClLoop);
  BM_TRY(loop->impl_->prepare(unit, kernels));
  return loop;
}

void OpenClLoop::submit(bool sets_arguments) {
  Impl& s = *impl_;
  const size_t global = 16, local = 16;
  const cl_mem* input = &s.inputs[++s.turn % 2];
  for (cl_kernel k : s.kernels) {
    if (sets_arguments) s.api->clSetKernelArg(k, 1, sizeof(cl_mem), input);
    s.api->clEnqueueNDRangeKernel(s.queue, k, 1, nullptr, &global, &local, 0, nullptr, nullptr);
  }
  s.api->clFlush(s.queue);
}

void OpenClLoop::wait() { impl_->api->clFinish(impl_->queue); }

}  // namespace bm::cli
