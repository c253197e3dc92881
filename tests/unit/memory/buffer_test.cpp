#include "runtime/buffer.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <cstdio>
#include <numeric>
#include <thread>

#include "runtime/base/bits.h"
#include "runtime/base/env.h"
#include "runtime/file_stream.h"
#include "runtime/staging.h"
#include "tests/unit/memory/fake_device.h"

namespace bm::runtime::test {
namespace {

std::vector<std::byte> pattern(size_t bytes, uint32_t seed = 1) {
  std::vector<std::byte> data(bytes);
  for (size_t i = 0; i < bytes; ++i)
    data[i] = static_cast<std::byte>((i * 2654435761u + seed) >> 7);
  return data;
}

std::vector<std::byte> device_bytes(const Buffer& buffer) {
  const std::byte* begin = host_of(buffer.va());
  return {begin, begin + buffer.size};
}

std::vector<std::byte> read_back(const Buffer& buffer) {
  std::vector<std::byte> data(buffer.size);
  const Status status = copy_out(data, buffer);
  EXPECT_TRUE(status) << status.error().message;
  return data;
}

TEST(Buffer, AViewIsARangeOfTheSameStorage) {
  FakeDevice device;
  const Buffer base = *allocate(device, {.size = 1000});
  const Buffer view = *base.view(100, 500);
  const Buffer inner = *view.view(50, 10);
  EXPECT_EQ(inner.storage, base.storage);
  EXPECT_EQ(inner.offset, 150u);
  EXPECT_EQ(hal::raw(inner.va()), hal::raw(base.va()) + 150);
  EXPECT_EQ(inner.size, 10u);
}

TEST(Buffer, PoisonedMemoryIsOnesEveryTimeItIsHandedOut) {
  const ScopedSetting poison("BM_POISON", "1");
  for (const bool is_visible : {false, true}) {
    FakeDevice device;
    device.fake.plain_is_visible = is_visible;
    for (int round = 0; round < 2; ++round) {
      const Buffer fresh = *allocate(device, {.size = 3'000'000});
      const std::vector<std::byte> expected(fresh.size, std::byte{0xff});
      EXPECT_EQ(read_back(fresh), expected) << "round " << round;
      ASSERT_TRUE(copy_in(fresh, std::vector<std::byte>(fresh.size)));
    }
  }
}

TEST(Buffer, RefusesViewsThatLeaveIt) {
  FakeDevice device;
  const Buffer base = *allocate(device, {.size = 1000});
  EXPECT_TRUE(base.view(1000, 0));
  EXPECT_FALSE(base.view(1001, 0));
  EXPECT_FALSE(base.view(500, 501));
  EXPECT_EQ(base.view(1, UINT64_MAX).error().code, Code::kInvalidArgument);
  EXPECT_FALSE(Buffer{}.view(0, 0));
  EXPECT_FALSE(base.view(100, 100)->view(0, 101)) << "a view's end counts, not its storage's";
}

TEST(Buffer, AViewKeepsTheStorageAlive) {
  FakeDevice device;
  Buffer view;
  {
    const Buffer base = *allocate(device, {.size = 1000});
    view = *base.view(10, 20);
  }
  EXPECT_EQ(device.allocator().stats().live, 1u);
  view = {};
  EXPECT_EQ(device.allocator().stats().live, 0u);
}

TEST(Buffer, HostVisibleCopiesNeedNoQueue) {
  FakeDevice device;
  const Buffer buffer = *allocate(device, {.size = 5000, .host_visible = true});
  const auto data = pattern(5000);
  ASSERT_TRUE(copy_in(buffer, data));
  EXPECT_EQ(read_back(buffer), data);
  EXPECT_EQ(device.stream().submissions, 0u);
}

TEST(Buffer, HostVisibleCopiesWaitForTheDevice) {
  FakeDevice device;
  const Buffer buffer = *allocate(device, {.size = 64, .host_visible = true});
  device.fake.holds = true;
  for (int direction = 0; direction < 2; ++direction) {
    const Point point = device.use(buffer);
    ASSERT_FALSE(reached(point));
    const auto data = pattern(64);
    if (direction == 0)
      ASSERT_TRUE(copy_in(buffer, data));
    else
      read_back(buffer);
    EXPECT_TRUE(reached(point));
  }
}

TEST(Buffer, StagedCopiesCarryEveryByteBothWays) {
  for (const size_t bytes :
       {size_t{1}, size_t{4096}, size_t{2_MiB}, size_t{2_MiB + 1}, size_t{37_MiB + 13}}) {
    FakeDevice device;
    const Buffer buffer = *allocate(device, {.size = bytes});
    ASSERT_EQ(buffer.host(), nullptr);
    const auto data = pattern(bytes);
    ASSERT_TRUE(copy_in(buffer, data));
    EXPECT_EQ(device_bytes(buffer), data);
    EXPECT_EQ(read_back(buffer), data);
    EXPECT_EQ(device.fake.copies, 2 * ceil_div(bytes, 2_MiB));
  }
}

TEST(Buffer, StagedCopiesIntoAViewTouchNothingElse) {
  FakeDevice device;
  const Buffer base = *allocate(device, {.size = 1000});
  const auto all = pattern(1000), part = pattern(100, 77);
  ASSERT_TRUE(copy_in(base, all));
  ASSERT_TRUE(copy_in(*base.view(300, 100), part));
  auto expected = all;
  std::copy(part.begin(), part.end(), expected.begin() + 300);
  EXPECT_EQ(read_back(base), expected);
  EXPECT_EQ(read_back(*base.view(300, 100)), part);
}

TEST(Buffer, StagedSlotsAreReusedOnlyAfterTheirCopy) {
  // A queue that runs one step per sleep: the ring wraps several times while copies are in flight.
  FakeDevice device;
  const Buffer buffer = *allocate(device, {.size = 40_MiB});
  device.fake.holds = true;
  const auto data = pattern(40_MiB);
  ASSERT_TRUE(copy_in(buffer, data));
  EXPECT_GT(device.clock.sleeps, 0u) << "the ring must have been full";
  EXPECT_GT(device.fake.num_held(), 0u) << "copy_in returns before the last chunks are copied";
  ASSERT_TRUE(device.synchronize());
  EXPECT_EQ(device_bytes(buffer), data);
  EXPECT_EQ(read_back(buffer), data);
}

TEST(Buffer, CopyOutKeepsTheNextChunksInFlight) {
  FakeDevice device;
  const Buffer buffer = *allocate(device, {.size = 12_MiB});
  device.fake.holds = true;
  size_t most_held = 0;
  device.clock.on_sleep = [&] { most_held = std::max(most_held, device.fake.num_held() + 1); };
  read_back(buffer);
  EXPECT_GE(most_held, 2u);
}

TEST(Buffer, CopyInIsOrderedAfterEarlierWorkAndRecordsItsUse) {
  FakeDevice device;
  const Buffer buffer = *allocate(device, {.size = 64});
  device.fake.holds = true;
  const Point earlier = device.use(buffer);
  ASSERT_TRUE(copy_in(buffer, pattern(64)));
  EXPECT_FALSE(reached(earlier)) << "queued behind, not waited for";
  EXPECT_GT(buffer.storage->last_use().value, earlier.value);
}

TEST(Buffer, StagedCopiesWaitForWorkOfOtherDevices) {
  FakeDevice device, other;
  const Buffer buffer = *allocate(device, {.size = 64});
  other.fake.holds = true;
  const Point foreign = other.use(buffer);
  ASSERT_TRUE(copy_in(buffer, pattern(64)));
  EXPECT_TRUE(reached(foreign));
}

TEST(Buffer, FailedSubmissionsReportAndLeaveTheRingUsable) {
  FakeDevice device;
  const Buffer buffer = *allocate(device, {.size = 10_MiB});
  const auto data = pattern(10_MiB);
  device.fake.fail_submission = 3;
  EXPECT_EQ(copy_in(buffer, data).error().code, Code::kDeviceLost);
  ASSERT_TRUE(copy_in(buffer, data));
  std::vector<std::byte> out(10_MiB);
  device.fake.fail_submission = 2;
  EXPECT_FALSE(copy_out(out, buffer));
  EXPECT_EQ(read_back(buffer), data);
}

TEST(Buffer, StagingGetsByWithOneSlot) {
  const auto data = pattern(10_MiB);
  for (const bool is_inbound : {true, false}) {
    FakeDevice device;
    const Buffer buffer = *allocate(device, {.size = 10_MiB});
    std::copy(data.begin(), data.end(), host_of(buffer.va()));
    device.fake.holds = true;
    device.fake.capacity = device.fake.bytes + 2_MiB;
    if (!is_inbound) {
      EXPECT_EQ(read_back(buffer), data);
      continue;
    }
    ASSERT_TRUE(copy_in(buffer, data));
    ASSERT_TRUE(device.synchronize());
    EXPECT_EQ(device_bytes(buffer), data);
    EXPECT_EQ(device.allocator().stats().live, 2u);
  }
}

TEST(Buffer, WithoutRoomForASlotStagingIsAnError) {
  FakeDevice device;
  const Buffer buffer = *allocate(device, {.size = 64});
  device.fake.capacity = device.fake.bytes;
  EXPECT_EQ(copy_in(buffer, pattern(64)).error().code, Code::kOutOfMemory);
  std::vector<std::byte> out(64);
  EXPECT_EQ(copy_out(out, buffer).error().code, Code::kOutOfMemory);
}

TEST(Buffer, CopiesOfDifferentSizesAreRefused) {
  FakeDevice device;
  const Buffer a = *allocate(device, {.size = 64}), b = *allocate(device, {.size = 65});
  std::vector<std::byte> host(63);
  EXPECT_EQ(copy_in(a, host).error().code, Code::kInvalidArgument);
  EXPECT_EQ(copy_out(host, a).error().code, Code::kInvalidArgument);
  EXPECT_EQ(copy(a, b).error().code, Code::kInvalidArgument);
  EXPECT_EQ(copy(a, Buffer{}).error().code, Code::kInvalidArgument);
  EXPECT_EQ(copy_in(Buffer{}, host).error().code, Code::kInvalidArgument);
  EXPECT_TRUE(copy_in(*a.view(0, 0), {}));
}

TEST(Buffer, CopyOnOneDeviceIsOneCommand) {
  FakeDevice device;
  const Buffer a = *allocate(device, {.size = 3_MiB}), b = *allocate(device, {.size = 3_MiB});
  const auto data = pattern(3_MiB);
  ASSERT_TRUE(copy_in(a, data));
  const size_t before = device.fake.copies;
  ASSERT_TRUE(copy(b, a));
  EXPECT_EQ(device.fake.copies, before + 1);
  EXPECT_EQ(device_bytes(b), data);
  EXPECT_EQ(b.storage->last_use().value, a.storage->last_use().value);
}

TEST(Buffer, CopyOntoItselfIsANoOpAndOverlapAnError) {
  FakeDevice device;
  const Buffer a = *allocate(device, {.size = 1000});
  EXPECT_TRUE(copy(*a.view(0, 500), *a.view(500, 500)));
  const size_t before = device.stream().submissions;
  EXPECT_TRUE(copy(a, a));
  EXPECT_EQ(device.stream().submissions, before);
  EXPECT_EQ(copy(*a.view(0, 501), *a.view(499, 501)).error().code, Code::kInvalidArgument);
}

TEST(Buffer, CopiesAcrossDevicesWhateverIsVisible) {
  for (const bool source_visible : {false, true})
    for (const bool target_visible : {false, true}) {
      FakeDevice a({}, "A"), b({}, "B");
      const Buffer source = *allocate(a, {.size = 9_MiB + 5, .host_visible = source_visible});
      const Buffer target = *allocate(b, {.size = 9_MiB + 5, .host_visible = target_visible});
      const auto data = pattern(9_MiB + 5);
      ASSERT_TRUE(copy_in(source, data));
      a.fake.holds = b.fake.holds = true;
      const Point writer = a.use(source);
      const Status status = copy(target, source);
      ASSERT_TRUE(status) << status.error().message;
      EXPECT_TRUE(reached(writer));
      ASSERT_TRUE(b.synchronize());
      EXPECT_EQ(device_bytes(target), data) << source_visible << target_visible;
    }
}

TEST(Buffer, TwoDevicesCopyToEachOtherAtOnce) {
  FakeDevice a({}, "A"), b({}, "B");
  const Buffer a1 = *allocate(a, {.size = 20_MiB}), a2 = *allocate(a, {.size = 20_MiB});
  const Buffer b1 = *allocate(b, {.size = 20_MiB}), b2 = *allocate(b, {.size = 20_MiB});
  const auto data_a = pattern(20_MiB, 1), data_b = pattern(20_MiB, 2);
  ASSERT_TRUE(copy_in(a1, data_a));
  ASSERT_TRUE(copy_in(b1, data_b));
  std::thread one([&] { EXPECT_TRUE(copy(b2, a1)); });
  std::thread two([&] { EXPECT_TRUE(copy(a2, b1)); });
  one.join();
  two.join();
  EXPECT_EQ(device_bytes(b2), data_a);
  EXPECT_EQ(device_bytes(a2), data_b);
}

TEST(Buffer, ThreadsMayStageThroughOneDevice) {
  FakeDevice device;
  std::vector<std::thread> threads;
  for (uint32_t t = 0; t < 4; ++t)
    threads.emplace_back([&device, t] {
      const Buffer buffer = *allocate(device, {.size = 5_MiB});
      for (uint32_t i = 0; i < 4; ++i) {
        const auto data = pattern(5_MiB, t * 16 + i);
        ASSERT_TRUE(copy_in(buffer, data));
        ASSERT_EQ(read_back(buffer), data);
      }
    });
  for (std::thread& thread : threads) thread.join();
}

/// File with `bytes`, deleted at the end of the test.
struct TemporaryFile {
  explicit TemporaryFile(std::span<const std::byte> bytes)
      : path(testing::TempDir() + "bm_stream_XXXXXX") {
    const int fd = ::mkstemp(path.data());
    EXPECT_EQ(::write(fd, bytes.data(), bytes.size()), static_cast<ssize_t>(bytes.size()));
    ::close(fd);
  }
  ~TemporaryFile() { std::remove(path.c_str()); }
  std::string path;
};

TEST(Buffer, StreamsAFileIntoEitherKindOfMemory) {
  const auto data = pattern(9_MiB);
  const TemporaryFile file(data);
  for (const bool visible : {false, true}) {
    FakeDevice device;
    const Buffer buffer = *allocate(device, {.size = 8_MiB + 100, .host_visible = visible});
    device.fake.holds = true;
    const Status status = copy_from_file(buffer, file.path, 777);
    ASSERT_TRUE(status) << status.error().message;
    EXPECT_EQ(read_back(buffer),
              std::vector<std::byte>(data.begin() + 777, data.begin() + 777 + 8_MiB + 100));
    EXPECT_EQ(device.stream().submissions == 0, visible);
  }
}

TEST(Buffer, AShortFileIsAnErrorWithTheOffset) {
  const TemporaryFile file(pattern(3_MiB));
  for (const bool visible : {false, true}) {
    FakeDevice device;
    const Buffer buffer = *allocate(device, {.size = 3_MiB, .host_visible = visible});
    const Status status = copy_from_file(buffer, file.path, 1);
    ASSERT_FALSE(status);
    EXPECT_EQ(status.error().code, Code::kIo);
    EXPECT_NE(status.error().message.find("ends at offset 3145728, 1 bytes short"),
              std::string::npos)
        << status.error().message;
  }
}

TEST(FileStream, ContinuesShortReadsAndInterruptions) {
  const auto data = pattern(10'000);
  const TemporaryFile file(data);
  const Result<FileStream> stream =
      FileStream::open(file.path, [](int fd, void* out, size_t bytes, off_t offset) {
        static int calls = 0;  // NOLINT: the callback has no state of its own
        if (++calls % 3 == 0) {
          errno = EINTR;
          return ssize_t{-1};
        }
        return ::pread(fd, out, std::min<size_t>(bytes, 997), offset);
      });
  ASSERT_TRUE(stream);
  EXPECT_EQ(stream->size(), 10'000u);
  std::vector<std::byte> out(9'000);
  ASSERT_TRUE(stream->read(out, 500));
  EXPECT_TRUE(std::equal(out.begin(), out.end(), data.begin() + 500));
}

TEST(FileStream, ReportsReadErrorsWithPathAndOffset) {
  const TemporaryFile file(pattern(100));
  const Result<FileStream> stream = FileStream::open(file.path, [](int, void*, size_t, off_t) {
    errno = EIO;
    return ssize_t{-1};
  });
  std::vector<std::byte> out(10);
  const Status status = stream->read(out, 20);
  ASSERT_FALSE(status);
  EXPECT_NE(status.error().message.find(file.path + ": reading at offset 20"), std::string::npos);
  EXPECT_EQ(FileStream::open("/nonexistent/file").error().code, Code::kNotFound);
  EXPECT_EQ(FileStream::open(testing::TempDir()).error().code, Code::kInvalidArgument);
  EXPECT_EQ(FileStream::open(file.path)->read(out, UINT64_MAX).error().code, Code::kIo);
}

TEST(UseList, RemembersOnePointPerTimeline) {
  FakeDevice a, b;
  a.fake.holds = b.fake.holds = true;
  const Buffer buffer = *allocate(a, {.size = 64});
  const Point a1 = a.use(buffer), b1 = b.use(buffer), a2 = a.use(buffer);
  EXPECT_EQ(buffer.storage->last_use().value, a2.value);
  EXPECT_EQ(buffer.storage->uses().size(), 2u);
  buffer.storage->used_until(a1);
  EXPECT_EQ(buffer.storage->last_use().value, a2.value) << "an older Point changes nothing";
  a.fake.run();
  ASSERT_EQ(buffer.storage->uses().size(), 1u);
  EXPECT_EQ(buffer.storage->uses()[0].timeline, b1.timeline);
  ASSERT_TRUE(buffer.storage->wait_idle());
  EXPECT_TRUE(reached(b1));
  EXPECT_TRUE(buffer.storage->uses().empty());
}

}  // namespace
}  // namespace bm::runtime::test
