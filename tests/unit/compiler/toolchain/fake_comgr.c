// A stand-in for AMD's code object manager, release 3: the functions that comgr.cpp calls, compiling
// with the clang of this machine (BM_FAKE_COMGR_CLANG). It shows that HIP source is right and that
// the calls fit our own reading of the interface; AMD's library itself was never there.
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define EXPORT __attribute__((visibility("default")))
enum { kSource = 1, kLog = 5, kBitcode = 6, kRelocatable = 7, kHip = 3, kToBitcode = 2, kToObject = 4 };

typedef struct { uint64_t value; } handle;
typedef struct data { int kind; size_t size; char* bytes; struct data* next; } data;
typedef struct { data* items[4]; size_t count; } data_set;
typedef struct { char isa[64]; int language; char options[1024]; } action;

EXPORT void amd_comgr_get_version(size_t* major, size_t* minor) { *major = 3, *minor = 0; }
static handle wrap(void* p) { handle h = {(uint64_t)(uintptr_t)p}; return h; }
static void* unwrap(handle h) { return (void*)(uintptr_t)h.value; }

/// Data sets share them, so they stay to the end.
static data* every;
static data* make(int kind) {
  data* d = calloc(1, sizeof *d);
  d->kind = kind;
  d->next = every;
  return every = d;
}

EXPORT int amd_comgr_create_data(int kind, handle* out) {
  *out = wrap(make(kind));
  return 0;
}
EXPORT int amd_comgr_release_data(handle h) { (void)h; return 0; }
EXPORT int amd_comgr_set_data(handle h, size_t size, const char* bytes) {
  data* d = unwrap(h);
  d->bytes = malloc(size + 1);
  memcpy(d->bytes, bytes, size);
  d->size = size;
  return 0;
}
EXPORT int amd_comgr_set_data_name(handle h, const char* name) { (void)h; return name == NULL; }
EXPORT int amd_comgr_get_data(handle h, size_t* size, char* out) {
  const data* d = unwrap(h);
  if (out != NULL) memcpy(out, d->bytes, d->size);
  *size = d->size;
  return 0;
}
EXPORT int amd_comgr_create_data_set(handle* out) { *out = wrap(calloc(1, sizeof(data_set))); return 0; }
EXPORT int amd_comgr_destroy_data_set(handle h) { free(unwrap(h)); return 0; }
EXPORT int amd_comgr_data_set_add(handle h, handle d) {
  data_set* set = unwrap(h);
  if (set->count == 4) return 1;
  set->items[set->count++] = unwrap(d);
  return 0;
}
EXPORT int amd_comgr_action_data_count(handle h, int kind, size_t* count) {
  const data_set* set = unwrap(h);
  *count = 0;
  for (size_t i = 0; i < set->count; ++i) *count += set->items[i]->kind == kind;
  return 0;
}
EXPORT int amd_comgr_action_data_get_data(handle h, int kind, size_t index, handle* out) {
  const data_set* set = unwrap(h);
  for (size_t i = 0; i < set->count; ++i)
    if (set->items[i]->kind == kind && index-- == 0) return *out = wrap(set->items[i]), 0;
  return 1;
}
EXPORT int amd_comgr_create_action_info(handle* out) { *out = wrap(calloc(1, sizeof(action))); return 0; }
EXPORT int amd_comgr_destroy_action_info(handle h) { free(unwrap(h)); return 0; }
EXPORT int amd_comgr_action_info_set_isa_name(handle h, const char* isa) {
  action* a = unwrap(h);
  if (strncmp(isa, "amdgcn-amd-amdhsa--gfx", 22) != 0 || strlen(isa) >= sizeof a->isa) return 2;
  strcpy(a->isa, isa + 19);
  return 0;
}
EXPORT int amd_comgr_action_info_set_language(handle h, int language) {
  ((action*)unwrap(h))->language = language;
  return language == kHip ? 0 : 2;
}
EXPORT int amd_comgr_action_info_set_option_list(handle h, const char* options[], size_t count) {
  action* a = unwrap(h);
  for (size_t i = 0; i < count; ++i) {
    strcat(a->options, " ");
    strcat(a->options, options[i]);
  }
  return 0;
}
EXPORT int amd_comgr_action_info_set_logging(handle h, bool logs) { (void)h; (void)logs; return 0; }

static int add_file(data_set* set, int kind, const char* path) {
  FILE* file = fopen(path, "rb");
  if (file == NULL) return 1;
  data* d = make(kind);
  d->bytes = malloc(1 << 22);
  d->size = fread(d->bytes, 1, 1 << 22, file);
  fclose(file);
  set->items[set->count++] = d;
  return 0;
}

EXPORT int amd_comgr_do_action(int kind, handle info, handle in, handle out) {
  const action* a = unwrap(info);
  const data_set* input = unwrap(in);
  data_set* result = unwrap(out);
  const bool is_source = kind == kToBitcode;
  if ((!is_source && kind != kToObject) || input->count == 0 || (is_source && a->language != kHip)) return 2;
  char folder[] = "/tmp/bm_comgr_XXXXXX", command[4096], name[64];
  if (mkdtemp(folder) == NULL) return 1;
  snprintf(name, sizeof name, "%s/in.%s", folder, is_source ? "hip" : "bc");
  for (size_t i = 0; i < input->count; ++i) {
    if (input->items[i]->kind != (is_source ? kSource : kBitcode)) continue;
    FILE* file = fopen(name, "wb");
    fwrite(input->items[i]->bytes, 1, input->items[i]->size, file);
    fclose(file);
  }
  const char* clang = getenv("BM_FAKE_COMGR_CLANG");
  if (is_source)
    snprintf(command, sizeof command,
             "%s -x hip --cuda-device-only -emit-llvm -c%s %s -o %s/out 2> %s/log",
             clang ? clang : "clang", a->options, name, folder, folder);
  else
    snprintf(command, sizeof command, "%s -target amdgcn-amd-amdhsa -mcpu=%s -nogpulib -c%s %s -o %s/out 2> %s/log",
             clang ? clang : "clang", a->isa, a->options, name, folder, folder);
  const int status = system(command);
  char path[64];
  snprintf(path, sizeof path, "%s/log", folder);
  add_file(result, kLog, path);
  snprintf(path, sizeof path, "%s/out", folder);
  const int failed = status != 0 || add_file(result, is_source ? kBitcode : kRelocatable, path) != 0;
  snprintf(command, sizeof command, "rm -r %s", folder);
  if (system(command) != 0) return 1;
  return failed;
}
