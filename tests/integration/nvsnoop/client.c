// The calls a driver makes, as few as a recorder needs: objects, a channel, a doorbell, three
// pushes.

#include <fcntl.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mman.h>

struct Allocation {  // NVOS21_PARAMETERS
  uint32_t root, parent, handle, object_class;
  void* parameters;
  uint32_t bytes, status;
};
struct Control {  // NVOS54_PARAMETERS
  uint32_t client, object, command, flags;
  void* parameters;
  uint32_t bytes, status;
};
struct Map {  // nv_ioctl_nvos33_parameters_with_fd
  uint32_t client, device, memory, pad;
  uint64_t offset, length, address;
  uint32_t status, flags;
  int fd, pad2;
};

static int control_fd;

static uint32_t allocate(uint32_t root, uint32_t parent, uint32_t object_class, void* parameters,
                         uint32_t bytes) {
  struct Allocation a = {root, parent, 0, object_class, parameters, bytes, 0};
  if (ioctl(control_fd, _IOWR('F', 0x2b, struct Allocation), &a) != 0 || a.status != 0) return 0;
  return a.handle;
}

static void* map(uint32_t client, uint32_t device, uint32_t memory, size_t bytes) {
  const int fd = open("/dev/nvidia0", O_RDWR);
  struct Map m = {client, device, memory, 0, 0, bytes, 0, 0, 0, fd, 0};
  if (ioctl(control_fd, _IOWR('F', 0x4e, struct Map), &m) != 0) return NULL;
  // Low, as push buffers must be.
  return mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_32BIT, fd, 0);
}

static void submit(unsigned char* ring, uint32_t index, const uint32_t* words, uint32_t count,
                   volatile uint32_t* doorbell) {
  unsigned char* push = ring + 0x4000 + 0x100 * index;
  memcpy(push, words, count * 4);
  const uint64_t entry = (uint64_t)(uintptr_t)push | (uint64_t)count << 42;
  memcpy(ring + 8 * index, &entry, 8);
  *(volatile uint32_t*)(ring + 0x1000 + 0x8c) = index + 1;
  *doorbell = 0x1234 + index;
}

int main(void) {
  control_fd = open("/dev/nvidiactl", O_RDWR);
  const int uvm = open("/dev/nvidia-uvm", O_RDWR);
  uint64_t initialize[2] = {1, 0};
  ioctl(uvm, 0x30000001, initialize);
  const uint32_t client = allocate(0, 0, 0x41, NULL, 0);
  uint32_t device_parameters[14] = {0, 0xabcd};
  const uint32_t device =
      allocate(client, client, 0x80, device_parameters, sizeof device_parameters);
  uint32_t subdevice_parameters[1] = {0};
  const uint32_t subdevice = allocate(client, device, 0x2080, subdevice_parameters, 4);
  uint32_t gid[67] = {0, 2, 16};
  struct Control control = {client, subdevice, 0x2080014a, 0, gid, sizeof gid, 0};
  ioctl(control_fd, _IOWR('F', 0x2a, struct Control), &control);
  const uint32_t usermode = allocate(client, subdevice, 0xc661, NULL, 0);
  volatile uint32_t* page = map(client, subdevice, usermode, 65536);
  const uint32_t memory = allocate(client, device, 0x40, NULL, 0);
  unsigned char* ring = map(client, device, memory, 65536);
  if (client == 0 || page == NULL || ring == NULL) return 1;
  unsigned char channel[368] = {0};
  const uint64_t ring_address = (uint64_t)(uintptr_t)ring, userd = 0x1000;
  const uint32_t entries = 128;
  memcpy(channel + 8, &ring_address, 8);
  memcpy(channel + 16, &entries, 4);
  memcpy(channel + 32, &memory, 4);
  memcpy(channel + 64, &userd, 8);
  allocate(client, device, 0xc86f, channel, sizeof channel);

  // SET_OBJECT on subchannel 1, then a semaphore release; later an immediate wait for idle.
  const uint32_t first[] = {1u << 29 | 1u << 16 | 1u << 13,
                            0xcbc0,
                            1u << 29 | 5u << 16 | 0x5c / 4,
                            0x1000,
                            0,
                            7,
                            0,
                            0x1000001};
  const uint32_t second[] = {4u << 29 | 1u << 16 | 1u << 13 | 0x110 / 4};
  // A launch descriptor of version 3.0 whose grid is 42 blocks wide.
  unsigned char* descriptor = ring + 0x8000;
  descriptor[72] = 0x30;
  descriptor[48] = 42;
  const uint32_t third[] = {1u << 29 | 1u << 16 | 1u << 13 | 0x2b4 / 4,
                            (uint32_t)((uintptr_t)descriptor >> 8)};
  submit(ring, 0, first, 8, page + 0x90 / 4);
  submit(ring, 1, second, 1, page + 0x90 / 4);
  submit(ring, 2, third, 2, page + 0x90 / 4);
  printf("doorbell %#x\n", page[0x90 / 4]);
  return 0;
}
