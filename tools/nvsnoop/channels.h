#pragma once
// What nvsnoop knows of the program's GPU objects: enough to find rings and the doorbell page.

#include <cstddef>
#include <cstdint>

namespace nvsnoop {

/// After a successful RM_ALLOC. `parameters`: of the allocation, may be cut.
void object_allocated(uint32_t handle, uint32_t object_class, const unsigned char* parameters,
                      size_t bytes);
/// After a successful RM_MAP_MEMORY: the next mmap of `fd` maps `memory`.
void mapping_prepared(int fd, uint32_t memory);
/// After a successful mmap of an nvidia descriptor. Returns true for a doorbell page.
bool mapping_made(int fd, void* address, size_t bytes);
void mapping_gone(void* address, size_t bytes);

/// Writes a line per ring that has new entries since the last call: the entries and the push
/// buffers they point to. Called where the program rings the doorbell; allocates nothing.
void record_rings();

}  // namespace nvsnoop
