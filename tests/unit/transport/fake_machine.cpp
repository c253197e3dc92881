#include "tests/unit/transport/fake_machine.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>

#include <fmt/format.h>

namespace bm::test {
namespace {

const std::string kDevices = "/sys/bus/pci/devices/";
const std::string kDrivers = "/sys/bus/pci/drivers/";

std::string trimmed(std::string text) {
  text.erase(text.find_last_not_of(" \n") + 1);
  return text;
}

}  // namespace

FakeMachine::FakeMachine() {
  put("/sys/bus/pci/drivers_probe", "");
  put("/sys/bus/pci/drivers/vfio-pci/bind", "");
  put("/sys/bus/pci/drivers/vfio-pci/unbind", "");
  put("/proc/self/comm", "test\n");
}

FakeMachine::~FakeMachine() {
  for (const auto& [name, fd] : bars_) ::close(fd);
}

void FakeMachine::put(const std::string& path, const std::string& text) {
  const std::lock_guard lock(mutex_);
  files_[resolve(path)] = text;
}

void FakeMachine::link(const std::string& path, const std::string& target) {
  const std::lock_guard lock(mutex_);
  links_[resolve(path)] = target;
}

void FakeMachine::remove(const std::string& path) {
  const std::lock_guard lock(mutex_);
  const auto is_below = [&path](const auto& entry) {
    return entry.first == path || entry.first.starts_with(path + "/");
  };
  std::erase_if(files_, is_below);
  std::erase_if(links_, is_below);
}

void FakeMachine::add(const FakeFunction& function) {
  const std::string real = "/sys/devices/pci0000:00/0000:00:01.0/" + function.address;
  const std::string folder = kDevices + function.address;
  link(folder, real);
  const auto word = [](uint32_t value) { return fmt::format("{:#06x}\n", value); };
  put(real + "/vendor", word(function.vendor));
  put(real + "/device", word(function.device));
  put(real + "/subsystem_vendor", word(0x1af4));
  put(real + "/subsystem_device", word(0x1100));
  put(real + "/class", word(function.class_code));
  put(real + "/revision", "0xc8\n");
  put(real + "/numa_node", "-1\n");
  put(real + "/enable", "0\n");
  put(real + "/driver_override", "(null)\n");
  put(real + "/current_link_speed", "16.0 GT/s PCIe\n");
  put(real + "/max_link_speed", "32.0 GT/s PCIe\n");
  put(real + "/current_link_width", "8\n");
  put(real + "/max_link_width", "16\n");
  if (function.class_code >> 16 == 3)
    put(real + "/boot_vga", function.is_boot_display ? "1\n" : "0\n");
  std::string resource;
  uint64_t at = 0x38'0000'0000;
  for (size_t i = 0; i < 6; ++i) {
    const uint64_t bytes = i < function.bars.size() ? function.bars[i] : 0;
    if (bytes == 0) {
      resource += "0x0000000000000000 0x0000000000000000 0x0000000000000000\n";
      continue;
    }
    at = (at + bytes - 1) / bytes * bytes;
    resource += fmt::format("{:#018x} {:#018x} {:#018x}\n", at, at + bytes - 1,
                            i == 5 ? 0x40200 : 0x14220c);
    put(fmt::format("{}/resource{}", real, i), "");
    at += bytes;
  }
  put(real + "/resource", resource);
  put(real + "/reset", "");
  std::string config(4096, '\0');
  std::memcpy(&config[0], &function.vendor, 2);
  std::memcpy(&config[2], &function.device, 2);
  config[8] = static_cast<char>(0xc8);
  for (size_t i = 0; i < 3; ++i) config[9 + i] = static_cast<char>(function.class_code >> i * 8);
  put(real + "/config", config);
  if (!function.group.empty()) {
    const std::string group = "/sys/kernel/iommu_groups/" + function.group;
    link(real + "/iommu_group", group);
    put(group + "/type", function.iommu_type + "\n");
    link(group + "/devices/" + function.address, real);
  }
  if (!function.driver.empty()) {
    drivers_[function.address] = function.driver;
    put(kDrivers + function.driver + "/bind", "");
    put(kDrivers + function.driver + "/unbind", "");
    link(real + "/driver", kDrivers + function.driver);
  }
}

void FakeMachine::add_process(int pid, const std::string& command, const std::string& path) {
  put(fmt::format("/proc/{}/comm", pid), command + "\n");
  link(fmt::format("/proc/{}/fd/0", pid), "/dev/null");
  link(fmt::format("/proc/{}/fd/7", pid), path);
}

std::string FakeMachine::text(const std::string& path) const {
  const std::lock_guard lock(mutex_);
  const auto found = files_.find(resolve(path));
  return found == files_.end() ? "(none)" : trimmed(found->second);
}

bool FakeMachine::exists(const std::string& path) const {
  const std::lock_guard lock(mutex_);
  return files_.contains(resolve(path)) || links_.contains(resolve(path));
}

std::string FakeMachine::dump() const {
  const std::lock_guard lock(mutex_);
  std::string text;
  for (const auto& [path, contents] : files_)
    if (contents.size() < 4096 && path.find("probe") == std::string::npos &&
        !path.ends_with("bind"))
      text += path + " = " + trimmed(contents) + "\n";
  for (const auto& [path, target] : links_) text += path + " -> " + target + "\n";
  return text;
}

std::string FakeMachine::driver_of(const std::string& address) const {
  const std::lock_guard lock(mutex_);
  const auto found = links_.find(resolve(kDevices + address) + "/driver");
  // The last link is not followed by resolve() of what lies below it.
  const std::string path = resolve(kDevices + address + "/x");
  const auto real = links_.find(path.substr(0, path.size() - 2) + "/driver");
  if (real != links_.end()) return real->second.substr(kDrivers.size());
  return found == links_.end() ? "" : found->second.substr(kDrivers.size());
}

bool FakeMachine::is_ours(const std::string& path) {
  return path.starts_with("/sys/") || path.starts_with("/proc/") || path == "/proc" ||
         path.starts_with("/dev/vfio") || path.starts_with("/usr/share/");
}

std::string FakeMachine::resolve(const std::string& path) const {
  std::string now = path;
  for (int round = 0; round < 16; ++round) {
    bool has_changed = false;
    for (size_t slash = now.find('/', 1); slash != std::string::npos;
         slash = now.find('/', slash + 1)) {
      const auto found = links_.find(now.substr(0, slash));
      if (found == links_.end()) continue;
      now = found->second + now.substr(slash);
      has_changed = true;
      break;
    }
    if (!has_changed) break;
  }
  return now;
}

std::string FakeMachine::path_of(int fd) const {
  const std::lock_guard lock(mutex_);
  const auto found = opened_.find(fd);
  return found == opened_.end() ? "" : found->second;
}

int FakeMachine::open_as(const std::string& path) {
  const int fd = ::memfd_create("fake", MFD_CLOEXEC);
  if (fd < 0) return -errno;
  const std::lock_guard lock(mutex_);
  const auto found = files_.find(path);
  if (found != files_.end() && !found->second.empty() &&
      ::write(fd, found->second.data(), found->second.size()) < 0)
    return -errno;
  opened_[fd] = path;
  return fd;
}

int FakeMachine::open(const std::string& path, int flags) {
  if (!is_ours(path)) return System::open(path, flags);
  const std::lock_guard lock(mutex_);
  const std::string real = resolve(path);
  if (!files_.contains(real)) return -ENOENT;
  return open_as(real);
}

int FakeMachine::create(const std::string& path, int flags, mode_t mode) {
  if (!is_ours(path)) return System::create(path, flags, mode);
  return -EACCES;
}

int FakeMachine::close(int fd) {
  {
    const std::lock_guard lock(mutex_);
    opened_.erase(fd);
  }
  return System::close(fd);
}

int FakeMachine::bar_file(const std::string& address, uint32_t bar) {
  const std::lock_guard lock(mutex_);
  int& fd = bars_.try_emplace(fmt::format("{}/{}", address, bar), -1).first->second;
  if (fd >= 0) return fd;
  fd = ::memfd_create("bar", MFD_CLOEXEC);
  const std::string lines = text(kDevices + address + "/resource");
  size_t at = 0;
  for (uint32_t i = 0; i < bar; ++i) at = lines.find('\n', at) + 1;
  const uint64_t first = std::stoull(lines.substr(at, 18), nullptr, 16);
  const uint64_t last = std::stoull(lines.substr(at + 19, 18), nullptr, 16);
  if (::ftruncate(fd, static_cast<off_t>(std::max<uint64_t>(last - first + 1, 4096))) != 0)
    std::abort();
  return fd;
}

int FakeMachine::mmap(void* address, size_t bytes, int protection, int flags, int fd, off_t offset,
                      void** out) {
  const std::string path = path_of(fd);
  const size_t at = path.rfind("/resource");
  if (at == std::string::npos)
    return System::mmap(address, bytes, protection, flags, fd, offset, out);
  const std::string folder = path.substr(0, at);
  const auto bar = static_cast<uint32_t>(path[at + 9] - '0');
  const int file = bar_file(folder.substr(folder.rfind('/') + 1), bar);
  return System::mmap(address, bytes, protection, flags, file, offset, out);
}

ssize_t FakeMachine::write(int fd, const void* from, size_t bytes) {
  const std::string path = path_of(fd);
  if (path.empty()) return System::write(fd, from, bytes);
  const std::string text(static_cast<const char*>(from), bytes);
  if (on_write)
    if (const int result = on_write(path, text); result != 0) return result;
  const std::lock_guard lock(mutex_);
  writes.push_back(path + " = " + trimmed(text));
  const int result = store(path, text);
  return result < 0 ? result : static_cast<ssize_t>(bytes);
}

ssize_t FakeMachine::pread(int fd, void* to, size_t bytes, uint64_t offset) {
  const std::string path = path_of(fd);
  if (path.empty()) return System::pread(fd, to, bytes, offset);
  const std::lock_guard lock(mutex_);
  const std::string& text = files_[path];
  if (offset >= text.size()) return 0;
  const size_t count = std::min<size_t>(bytes, text.size() - offset);
  std::memcpy(to, text.data() + offset, count);
  return static_cast<ssize_t>(count);
}

ssize_t FakeMachine::pwrite(int fd, const void* from, size_t bytes, uint64_t offset) {
  const std::string path = path_of(fd);
  if (path.empty()) return System::pwrite(fd, from, bytes, offset);
  const std::lock_guard lock(mutex_);
  std::string& text = files_[path];
  if (offset >= text.size()) return -EINVAL;
  const size_t count = std::min<size_t>(bytes, text.size() - offset);
  std::memcpy(text.data() + offset, from, count);
  return static_cast<ssize_t>(count);
}

int FakeMachine::bind(const std::string& address, const std::string& driver) {
  if (driver.empty() || !files_.contains(kDrivers + driver + "/bind")) return -ENODEV;
  link(kDevices + address + "/driver", kDrivers + driver);
  return 0;
}

int FakeMachine::store(const std::string& path, const std::string& text) {
  const std::string value = trimmed(text);
  if (path == "/sys/bus/pci/drivers_probe") {
    if (!driver_of(value).empty()) return 0;
    const std::string override_text = this->text(kDevices + value + "/driver_override");
    const bool is_free = override_text == "(null)" || override_text.empty();
    (void)bind(value, is_free ? drivers_[value] : override_text);
    return 0;
  }
  if (path.starts_with(kDrivers)) {
    const std::string name = path.substr(kDrivers.size(), path.rfind('/') - kDrivers.size());
    if (path.ends_with("/unbind")) {
      if (driver_of(value) != name) return -ENODEV;
      const std::string real = resolve(kDevices + value + "/driver");
      links_.erase(real);
      return 0;
    }
    if (!driver_of(value).empty()) return -EBUSY;
    return bind(value, name);
  }
  if (path.ends_with("/driver_override"))
    files_[path] = value.empty() ? "(null)\n" : value + "\n";
  else
    files_[path] = value + "\n";
  return 0;
}

int FakeMachine::read_file(const std::string& path, std::string* out) {
  if (!is_ours(path)) return System::read_file(path, out);
  const std::lock_guard lock(mutex_);
  const auto found = files_.find(resolve(path));
  if (found == files_.end()) return -ENOENT;
  *out = found->second;
  return 0;
}

int FakeMachine::list(const std::string& path, std::vector<std::string>* out) {
  if (!is_ours(path)) return System::list(path, out);
  const std::lock_guard lock(mutex_);
  const std::string real = resolve(path + "/");
  std::set<std::string> names;
  const auto collect = [&](const auto& entries) {
    for (const auto& [name, value] : entries)
      if (name.starts_with(real))
        names.insert(name.substr(real.size(), name.find('/', real.size()) - real.size()));
  };
  collect(files_);
  collect(links_);
  if (names.empty()) return -ENOENT;
  out->assign(names.begin(), names.end());
  return 0;
}

int FakeMachine::read_link(const std::string& path, std::string* out) {
  if (!is_ours(path)) return System::read_link(path, out);
  const std::lock_guard lock(mutex_);
  const auto found = links_.find(resolve(path));
  if (found == links_.end()) return -EINVAL;
  *out = found->second;
  return 0;
}

}  // namespace bm::test
