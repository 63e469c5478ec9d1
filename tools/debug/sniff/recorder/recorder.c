/* Records what a program asks of the nodes below a path prefix, by standing before the C library's
 * open, close, ioctl and mmap. Built when needed by tools/debug/sniff/preload.py.
 *
 * UGPU_SNIFF_LOG     the file to append to: one JSON object a line, written by one write each
 * UGPU_SNIFF_RULES   which blocks to copy, as tools/debug/sniff/rules.py writes them
 * UGPU_SNIFF_PREFIX  the start of the paths to watch
 * UGPU_SNIFF_MEMORY  how many doorbells to stop at, to record what changed in mapped memory; else none
 *
 * Memory is copied by process_vm_readv, so that a bad pointer of the program is recorded as missing
 * and goes to the driver as it is.
 */
#define _GNU_SOURCE
#undef _FORTIFY_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <setjmp.h>
#include <sched.h>
#include <signal.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/types.h>
#include <sys/uio.h>
#include <time.h>
#include <ucontext.h>
#include <unistd.h>

#define BLOCK_LIMIT 65536u
#define RULES 4096
#define KGSL 9 /* KGSL_IOC_TYPE */

struct rule {
  char kind;
  unsigned long a, b;
  long c, d, e;
};

static struct rule rules[RULES];
static int rule_count, log_fd = -1, shots_left;
static char log_path[PATH_MAX], prefix[PATH_MAX];
static size_t prefix_length;

static void put_log(const char *text, size_t length) {
  int before = errno;
  if (log_fd < 0 || fcntl(log_fd, F_GETFD) < 0) {
    int fd = (int)syscall(SYS_openat, AT_FDCWD, log_path, O_WRONLY | O_APPEND | O_CREAT | O_CLOEXEC, 0600);
    if (fd >= 0) {
      log_fd = fcntl(fd, F_DUPFD_CLOEXEC, 900);
      if (log_fd < 0) log_fd = fd;
      else syscall(SYS_close, fd);
    }
  }
  if (log_fd >= 0) {
    ssize_t done = write(log_fd, text, length);
    (void)done;
  }
  errno = before;
}

__attribute__((constructor)) static void begin(void) {
  const char *log = getenv("UGPU_SNIFF_LOG"), *file = getenv("UGPU_SNIFF_RULES");
  const char *start = getenv("UGPU_SNIFF_PREFIX");
  if (!log || !file || !start) return;
  snprintf(log_path, sizeof log_path, "%s", log);
  const char *shots = getenv("UGPU_SNIFF_MEMORY");
  shots_left = shots ? atoi(shots) : 0;
  FILE *in = fopen(file, "re");
  if (!in) return;
  char line[256];
  while (rule_count < RULES && fgets(line, sizeof line, in)) {
    struct rule *r = &rules[rule_count];
    r->c = r->d = r->e = -1;
    if (sscanf(line, " %c %li %li %li %li %li", &r->kind, (long *)&r->a, (long *)&r->b, &r->c, &r->d,
               &r->e) >= 3)
      rule_count++;
  }
  fclose(in);
  snprintf(prefix, sizeof prefix, "%s", start);
  prefix_length = strlen(prefix);
}

static const struct rule *find_rule(char kind, unsigned long a) {
  for (int i = 0; i < rule_count; i++)
    if (rules[i].kind == kind && rules[i].a == a) return &rules[i];
  return NULL;
}

static int watched(const char *path) {
  return prefix_length && strncmp(path, prefix, prefix_length) == 0;
}

static int watched_fd(int fd, char path[PATH_MAX]) {
  char link[64];
  if (!prefix_length || fd < 0) return 0;
  int before = errno;
  snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
  ssize_t length = readlink(link, path, PATH_MAX - 1);
  errno = before;
  if (length < 0) return 0;
  path[length] = 0;
  return watched(path);
}

/* Text that grows. */
struct text {
  char *data;
  size_t length, room;
};

static int grow(struct text *t, size_t more) {
  if (t->length + more <= t->room) return 1;
  size_t room = (t->room + more) * 2;
  char *data = realloc(t->data, room);
  if (!data) return 0;
  t->data = data;
  t->room = room;
  return 1;
}

__attribute__((format(printf, 2, 3))) static void add(struct text *t, const char *format, ...) {
  va_list list;
  if (!grow(t, 512)) return;
  va_start(list, format);
  int n = vsnprintf(t->data + t->length, 512, format, list);
  va_end(list);
  if (n > 0) t->length += n < 512 ? (size_t)n : 511;
}

static void add_string(struct text *t, const char *key, const char *value) {
  if (!grow(t, strlen(value) * 6 + 64)) return;
  add(t, ",\"%s\":\"", key);
  for (const unsigned char *p = (const unsigned char *)value; *p; p++) {
    if (*p == '"' || *p == '\\' || *p < 32 || *p > 126)
      t->length += (size_t)sprintf(t->data + t->length, "\\u%04x", *p);
    else
      t->data[t->length++] = (char)*p;
  }
  t->data[t->length++] = '"';
}

struct copy {
  unsigned char *bytes;
  size_t length, asked;
  int good;
};

static struct copy copy_of(uint64_t address, size_t size) {
  struct copy c = {NULL, size < BLOCK_LIMIT ? size : BLOCK_LIMIT, size, 0};
  c.bytes = malloc(c.length ? c.length : 1);
  if (!c.bytes) return c;
  int before = errno;
  struct iovec to = {c.bytes, c.length}, from = {(void *)(uintptr_t)address, c.length};
  c.good = c.length == 0 || process_vm_readv(getpid(), &to, 1, &from, 1, 0) == (ssize_t)c.length;
  errno = before;
  return c;
}

static void add_copy(struct text *t, const char *key, const struct copy *c) {
  static const char digits[] = "0123456789abcdef";
  if (!c->bytes || !c->good) {
    add(t, ",\"%s\":null", key);
    return;
  }
  if (!grow(t, c->length * 2 + 64)) return;
  add(t, ",\"%s\":\"", key);
  for (size_t i = 0; i < c->length; i++) {
    t->data[t->length++] = digits[c->bytes[i] >> 4];
    t->data[t->length++] = digits[c->bytes[i] & 15];
  }
  t->data[t->length++] = '"';
}

static void start_line(struct text *t, const char *call) {
  struct timespec now;
  clock_gettime(CLOCK_MONOTONIC, &now);
  add(t, "{\"call\":\"%s\",\"time\":%lld.%09ld,\"pid\":%d,\"thread\":%d", call, (long long)now.tv_sec,
      now.tv_nsec, (int)getpid(), (int)syscall(SYS_gettid));
}

static void end_line(struct text *t, long long result, int error) {
  add(t, ",\"result\":%lld,\"errno\":%d}\n", result, error);
  if (t->data) put_log(t->data, t->length);
  free(t->data);
}

static uint64_t word(const struct copy *c, long at, size_t bytes) {
  uint64_t value = 0;
  if (at >= 0 && c->good && (size_t)at + bytes <= c->length) memcpy(&value, c->bytes + at, bytes);
  return value;
}

#define BLOCKS 4
struct blocks {
  int count;
  struct {
    long at;
    int inside;
    uint64_t address;
    struct copy before;
  } block[BLOCKS];
};

static void take(struct blocks *b, int inside, long at, uint64_t address, size_t size) {
  if (!address || !size || b->count == BLOCKS) return;
  b->block[b->count].at = at;
  b->block[b->count].inside = inside;
  b->block[b->count].address = address;
  b->block[b->count].before = copy_of(address, size);
  b->count++;
}

/* Find the blocks that an ioctl's own block points to. */
static void find_blocks(struct blocks *b, unsigned long request, const struct copy *own) {
  for (int i = 0; i < rule_count; i++)
    if (rules[i].kind == 'b' && rules[i].a == (uint32_t)request)
      take(b, -1, (long)rules[i].b, word(own, (long)rules[i].b, 8),
           (rules[i].c < 0 ? 1 : word(own, rules[i].c, 4)) * (size_t)rules[i].d);
  if (((request >> 8) & 255) != 'F') return;
  unsigned long key = (request & 255) | ((request >> 16) & 0x3fff) << 16;
  const struct rule *r = find_rule('p', key);
  if (!r) return;
  uint64_t address = word(own, (long)r->b, 8);
  size_t size = word(own, r->c, 4);
  if (!size && r->d >= 0) {
    const struct rule *known = find_rule('c', word(own, r->d, 4));
    if (known) size = known->b;
  }
  take(b, -1, (long)r->b, address, size);
  if (r->e < 0 || b->count != 1) return;
  unsigned long command = word(own, r->e, 4);
  for (int i = 0; i < rule_count; i++)
    if (rules[i].kind == 'n' && rules[i].a == command) {
      const struct copy *outer = &b->block[0].before;
      take(b, 0, (long)rules[i].b, word(outer, (long)rules[i].b, 8),
           word(outer, rules[i].c, 4) * (size_t)rules[i].d);
    }
}

static void add_blocks(struct text *t, struct blocks *b) {
  add(t, ",\"blocks\":[");
  for (int i = 0; i < b->count; i++) {
    struct copy after = copy_of(b->block[i].address, b->block[i].before.asked);
    add(t, "%s{\"at\":%ld,\"inside\":%d,\"address\":%llu,\"size\":%zu", i ? "," : "", b->block[i].at,
        b->block[i].inside, (unsigned long long)b->block[i].address, b->block[i].before.asked);
    add_copy(t, "before", &b->block[i].before);
    add_copy(t, "after", &after);
    add(t, "}");
    free(after.bytes);
    free(b->block[i].before.bytes);
  }
  add(t, "]");
}

#include "memory.h"

int munmap(void *address, size_t length) {
  static int (*real)(void *, size_t);
  if (!real) real = (int (*)(void *, size_t))dlsym(RTLD_NEXT, "munmap");
  forget_mappings(address, length);
  return real(address, length);
}

typedef int (*ioctl_t)(int, unsigned long, ...);

int ioctl(int fd, unsigned long request, ...) {
  static ioctl_t real;
  va_list list;
  va_start(list, request);
  void *argument = va_arg(list, void *);
  va_end(list);
  if (!real) real = (ioctl_t)dlsym(RTLD_NEXT, "ioctl");
  char path[PATH_MAX];
  if (!watched_fd(fd, path)) return real(fd, request, argument);
  size_t size = (request >> 16) & 0x3fff;
  unsigned long magic = (request >> 8) & 255;
  if ((magic != 'F' && magic != KGSL) || request < 65536) {
    const struct rule *known = find_rule('u', request);
    size = known ? known->b : 0;
  }
  struct text t = {0};
  struct blocks blocks = {0};
  struct copy before = copy_of((uint64_t)(uintptr_t)argument, size);
  find_blocks(&blocks, request, &before);
  note_submit(request);
  start_line(&t, "ioctl");
  int result = real(fd, request, argument), error = errno;
  struct copy after = copy_of((uint64_t)(uintptr_t)argument, size);
  add_string(&t, "path", path);
  add(&t, ",\"fd\":%d,\"request\":%lu,\"argument\":%llu", fd, request,
      (unsigned long long)(uintptr_t)argument);
  add_copy(&t, "before", &before);
  add_copy(&t, "after", &after);
  add_blocks(&t, &blocks);
  end_line(&t, result, result < 0 ? error : 0);
  note_bell(request, &after);
  free(before.bytes);
  free(after.bytes);
  errno = error;
  return result;
}

static int note_open(const char *path, int fd) {
  int error = errno;
  char place[PATH_MAX];
  if (prefix_length && (fd >= 0 ? watched_fd(fd, place) : (path && watched(path)))) {
    struct text t = {0};
    start_line(&t, "open");
    add_string(&t, "path", fd >= 0 ? place : path);
    end_line(&t, fd, fd < 0 ? error : 0);
  }
  errno = error;
  return fd;
}

#define OPEN_MODE(flags)                        \
  mode_t mode = 0;                              \
  if (((flags) & O_CREAT) || ((flags) & O_TMPFILE) == O_TMPFILE) { \
    va_list list;                               \
    va_start(list, flags);                      \
    mode = (mode_t)va_arg(list, int);           \
    va_end(list);                               \
  }

#define OPEN(name)                                                                      \
  int name(const char *path, int flags, ...) {                                          \
    static int (*real)(const char *, int, ...);                                         \
    OPEN_MODE(flags)                                                                    \
    if (!real) real = (int (*)(const char *, int, ...))dlsym(RTLD_NEXT, #name);         \
    return note_open(path, real(path, flags, mode));                                    \
  }
#define OPENAT(name)                                                                    \
  int name(int where, const char *path, int flags, ...) {                               \
    static int (*real)(int, const char *, int, ...);                                    \
    OPEN_MODE(flags)                                                                    \
    if (!real) real = (int (*)(int, const char *, int, ...))dlsym(RTLD_NEXT, #name);    \
    return note_open(path, real(where, path, flags, mode));                             \
  }
OPEN(open)
OPEN(open64)
OPENAT(openat)
OPENAT(openat64)

int __open_2(const char *path, int flags) { return open(path, flags); }
int __open64_2(const char *path, int flags) { return open64(path, flags); }
int __openat_2(int where, const char *path, int flags) { return openat(where, path, flags); }
int __openat64_2(int where, const char *path, int flags) { return openat64(where, path, flags); }

int close(int fd) {
  static int (*real)(int);
  char path[PATH_MAX];
  if (!real) real = (int (*)(int))dlsym(RTLD_NEXT, "close");
  int mine = watched_fd(fd, path);
  int result = real(fd), error = errno;
  if (mine) {
    struct text t = {0};
    start_line(&t, "close");
    add_string(&t, "path", path);
    add(&t, ",\"fd\":%d", fd);
    end_line(&t, result, result < 0 ? error : 0);
  }
  errno = error;
  return result;
}

static void note_mmap(const char *path, int fd, size_t length, int access, int flags, off_t offset,
                      void *result) {
  int error = errno;
  struct text t = {0};
  start_line(&t, "mmap");
  add_string(&t, "path", path);
  add(&t, ",\"fd\":%d,\"length\":%zu,\"access\":%d,\"flags\":%d,\"offset\":%lld", fd, length, access, flags,
      (long long)offset);
  end_line(&t, result == MAP_FAILED ? -1 : (long long)(uintptr_t)result, result == MAP_FAILED ? error : 0);
  errno = error;
}

#define MMAP(name)                                                                            \
  void *name(void *address, size_t length, int access, int flags, int fd, off_t offset) {     \
    static void *(*real)(void *, size_t, int, int, int, off_t);                               \
    char path[PATH_MAX];                                                                      \
    if (!real) real = (void *(*)(void *, size_t, int, int, int, off_t))dlsym(RTLD_NEXT, #name); \
    void *result = real(address, length, access, flags, fd, offset);                          \
    if (flags & MAP_FIXED && result != MAP_FAILED) forget_mappings(address, length);          \
    if (!(flags & MAP_ANONYMOUS) && watched_fd(fd, path)) {                                   \
      note_mmap(path, fd, length, access, flags, offset, result);                             \
      if (result != MAP_FAILED) keep_mapping(path, fd, result, length, access);                       \
    }                                                                                         \
    return result;                                                                            \
  }
MMAP(mmap)
MMAP(mmap64)
