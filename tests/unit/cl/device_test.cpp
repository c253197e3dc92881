// Finding and naming devices.

#include <stdlib.h>

#include <filesystem>
#include <fstream>

#include "drivers/cl/info.h"
#include "runtime/device_manager.h"
#include "tests/unit/cl/rig.h"

namespace bm::cl {
namespace {

using namespace test;

TEST(OpenClDevice, AbsentLoaderNamesThePackages) {
  const ScopedSetting library("BM_CL_LIBRARY", "libNoSuchOpenCL.so.1");
  const auto count = count_devices("");
  ASSERT_FALSE(count);
  EXPECT_EQ(count.error().code, Code::kNotFound);
  EXPECT_NE(count.error().message.find("pocl-opencl-icd"), std::string::npos);
  EXPECT_NE(count.error().message.find("libNoSuchOpenCL.so.1"), std::string::npos);
  EXPECT_FALSE(open_device("", 0, ""));
}

TEST(OpenClDevice, AbsentLoaderIsListedWithTheRemedy) {
  const ScopedSetting library("BM_CL_LIBRARY", "libNoSuchOpenCL.so.1");
  runtime::DeviceManager manager(hal::builtin_drivers());
  bool is_listed = false;
  for (const runtime::DeviceListing& row : manager.list()) {
    if (row.driver != "CL") continue;
    is_listed = true;
    EXPECT_FALSE(row.is_usable);
    EXPECT_NE(row.problem.find("pocl-opencl-icd"), std::string::npos);
  }
  EXPECT_TRUE(is_listed);
}

TEST(OpenClDevice, LibraryThatIsNoLoaderIsRefusedByName) {
  const ScopedSetting library("BM_CL_LIBRARY", "libm.so.6");
  const auto count = count_devices("");
  ASSERT_FALSE(count);
  EXPECT_EQ(count.error().code, Code::kUnsupported);
  EXPECT_NE(count.error().message.find("lacks cl"), std::string::npos);
}

/// A folder of .icd files, removed with this.
struct IcdFolder {
  std::string path = ::testing::TempDir() + "icd-XXXXXX";
  IcdFolder() { EXPECT_NE(mkdtemp(path.data()), nullptr); }
  ~IcdFolder() { std::filesystem::remove_all(path); }
  void write(const char* name, std::string_view text) const {
    std::ofstream(path + "/" + name) << text;
  }
};

TEST(InstalledIcds, AreNamedByTheFilesThatTheLoaderReads) {
  for (const char* name : {"OCL_ICD_VENDORS", "OPENCL_VENDOR_PATH", "OCL_ICD_FILENAMES"})
    if (std::getenv(name) != nullptr) GTEST_SKIP() << name << " is set";
  const IcdFolder folder;
  const auto none = installed_icds(folder.path);
  ASSERT_FALSE(none);
  EXPECT_EQ(none.error().code, Code::kNotFound);
  EXPECT_NE(none.error().message.find("pocl-opencl-icd"), std::string::npos);
  EXPECT_FALSE(installed_icds(folder.path + "/nowhere"));

  folder.write("gone.icd", "/nowhere/libgone.so.1\n");
  folder.write("empty.icd", "");
  folder.write("README", "libnot.so\n");
  const auto missing = installed_icds(folder.path);
  ASSERT_FALSE(missing);
  EXPECT_NE(missing.error().message.find("gone.icd (/nowhere/libgone.so.1)"), std::string::npos);
  EXPECT_NE(missing.error().message.find("empty.icd (names no library)"), std::string::npos);
  EXPECT_EQ(missing.error().message.find("libnot"), std::string::npos);

  folder.write("b.icd", "libb.so.1 \r\nsecond line");
  folder.write("a.icd", "liba.so.1");
  const auto both = installed_icds(folder.path);
  ASSERT_TRUE(both) << both.error().message;
  EXPECT_EQ(*both, "installed: a.icd (liba.so.1), b.icd (libb.so.1)");

  setenv("OCL_ICD_VENDORS", "/elsewhere", 1);
  const auto overridden = installed_icds(folder.path);
  unsetenv("OCL_ICD_VENDORS");
  ASSERT_TRUE(overridden);
  EXPECT_EQ(*overridden, "");
}

cl_int no_platforms(cl_uint, cl_platform_id*, cl_uint*) { return -1001; }

TEST(OpenClDevice, LoaderWithoutPlatformsNamesThePackages) {
  BM_NEEDS_OPENCL();
  const auto api = real_api();
  api->clGetPlatformIDs = no_platforms;
  const auto device = open_device_on(api, 0, "");
  ASSERT_FALSE(device);
  EXPECT_EQ(device.error().code, Code::kNotFound);
  EXPECT_NE(device.error().message.find("pocl-opencl-icd"), std::string::npos);
}

/// The first platform, twice.
cl_int same_platform_twice(cl_uint capacity, cl_platform_id* platforms, cl_uint* count) {
  if (count != nullptr) *count = 2;
  for (cl_uint i = 0; i < capacity && platforms != nullptr; ++i)
    if (const cl_int error = (*load_api())->clGetPlatformIDs(1, platforms + i, nullptr))
      return error;
  return CL_SUCCESS;
}

TEST(OpenClDevice, PlatformsOfOneNameAreToldApart) {
  BM_NEEDS_OPENCL();
  const auto api = real_api();
  api->clGetPlatformIDs = same_platform_twice;
  const auto a = open_on(api, 0), b = open_on(api, 1);
  ASSERT_TRUE(a && b);
  EXPECT_EQ(a->arch().cpu, b->arch().cpu);
  EXPECT_NE(a->description(), b->description());
  EXPECT_NE(a->description().find("[0:0]"), std::string::npos) << a->description();
  EXPECT_NE(b->description().find("[1:0]"), std::string::npos) << b->description();
}

TEST(OpenClDevice, UnitBeyondTheLastIsNotFound) {
  BM_NEEDS_OPENCL();
  const auto device = open_device("", 99, "");
  ASSERT_FALSE(device);
  EXPECT_EQ(device.error().code, Code::kNotFound);
}

TEST(OpenClDevice, NamesResolveAsForOtherDevices) {
  BM_NEEDS_OPENCL();
  runtime::DeviceManager manager(hal::builtin_drivers());
  const auto plain = manager.open("CL"), long_name = manager.open("cl:0:opencl");
  ASSERT_TRUE(plain) << plain.error().message;
  ASSERT_TRUE(long_name) << long_name.error().message;
  EXPECT_EQ(*plain, *long_name);
  EXPECT_EQ((*plain)->name(), "CL");
  EXPECT_EQ((*plain)->renderer(), "OPENCL");
  EXPECT_EQ(manager.open("CL:LLVM").error().code, Code::kInvalidArgument);
  EXPECT_EQ(manager.open("CL:99").error().code, Code::kNotFound);
}

TEST(OpenClDevice, ArchIsOpenClCOfAVersion) {
  BM_NEEDS_OPENCL();
  const auto newest = open();
  EXPECT_TRUE(newest->arch().name.starts_with("opencl_c_"));
  EXPECT_EQ(newest->arch().vendor, hal::Vendor::kOpenCl);
  EXPECT_EQ(newest->arch().clock_hz, 1'000'000'000u);
  EXPECT_GT(newest->arch().max_block, 1u);
  EXPECT_GT(newest->arch().shared_memory_bytes, 0u);
  const auto older = open_device("", 0, "opencl_c_1.2");
  ASSERT_TRUE(older) << older.error().message;
  EXPECT_EQ((*older)->arch().name, "opencl_c_1.2");
  EXPECT_TRUE((*older)->load(add_code(**older)));
  const auto unknown = open_device("", 0, "opencl_c_9.9");
  ASSERT_FALSE(unknown);
  EXPECT_EQ(unknown.error().code, Code::kInvalidArgument);
  EXPECT_NE(unknown.error().message.find("opencl_c_1.2"), std::string::npos);
  EXPECT_EQ(open_device("ICD", 0, "").error().code, Code::kInvalidArgument);
}

cl_int no_svm(cl_device_id device, cl_device_info what, size_t bytes, void* value, size_t* size) {
  if (what == CL_DEVICE_SVM_CAPABILITIES) return CL_INVALID_VALUE;
  return (*load_api())->clGetDeviceInfo(device, what, bytes, value, size);
}

TEST(OpenClDevice, WithoutSharedVirtualMemoryUsesMemoryObjects) {
  BM_NEEDS_OPENCL();
  const auto api = real_api();
  api->clGetDeviceInfo = no_svm;
  api->clSVMAlloc = nullptr;
  const auto device = open_on(api);
  const auto buffer = allocate(*device, {.size = 4096});
  EXPECT_EQ(buffer->host(), nullptr);
  EXPECT_GE(hal::raw(buffer->va()), uint64_t{1} << 63);
}

cl_int no_fma(cl_device_id device, cl_device_info what, size_t bytes, void* value, size_t* size) {
  const cl_int status = (*load_api())->clGetDeviceInfo(device, what, bytes, value, size);
  if (what == CL_DEVICE_SINGLE_FP_CONFIG && value != nullptr)
    *static_cast<cl_device_fp_config*>(value) &= ~cl_device_fp_config{CL_FP_FMA};
  return status;
}

TEST(OpenClDevice, ThatHasNoFmaSaysSo) {
  BM_NEEDS_OPENCL();
  const auto api = real_api();
  const std::string before = open_on(api)->arch().features;
  api->clGetDeviceInfo = no_fma;
  const std::string after = open_on(api)->arch().features;
  EXPECT_TRUE(after.ends_with(" -fma")) << after;
  EXPECT_EQ(before, after.substr(0, after.size() - 5)) << "PoCL has it";
}

}  // namespace
}  // namespace bm::cl
