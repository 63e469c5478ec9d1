/* Records what a program asks of the nodes below a path prefix, by standing before the C library's
 * open, close, ioctl and mmap. Built when needed by tools/sniff/preload.py.
 *
 * UGPU_SNIFF_LOG     the file to append to: one JSON object a line, written by one write each
 * UGPU_SNIFF_RULES   which blocks to copy, as tools/sniff/rules.py writes them
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

/* Memory: pages of the program's mappings that changed, at each write of a doorbell. The doorbell's
 * page is made inaccessible; a write of it stops in a signal handler, which records, makes the page
 * accessible, and steps over the one instruction. Other threads may pass meanwhile unseen. */
#define KEPT 16
#define MAPPINGS 256
#define PAGE 4096u
#define LARGEST (64u << 20)
#define LARGEST_GPU (1u << 20)
#define SHOT_LIMIT (8u << 20)

struct mapping {
  char *address;
  size_t length;
  uint64_t *sums;
  int gpu;
};

static struct mapping mappings[MAPPINGS], bell;
static int mapping_count, bell_handle_count, bell_fd_count;
static uint32_t bell_handles[KEPT];
static int bell_fds[KEPT];

static void note_bell(unsigned long request, const struct copy *own) {
  if (!shots_left || ((request >> 8) & 255) != 'F') return;
  unsigned long key = (request & 255) | ((request >> 16) & 0x3fff) << 16;
  const struct rule *map = find_rule('m', key), *made = find_rule('o', key);
  if (made && find_rule('d', word(own, (long)made->b, 4)) && bell_handle_count < KEPT)
    bell_handles[bell_handle_count++] = (uint32_t)word(own, made->c, 4);
  if (!map) return;
  for (int i = 0; i < bell_handle_count && bell_fd_count < KEPT; i++)
    if (bell_handles[i] == (uint32_t)word(own, (long)map->b, 4)) {
      bell_fds[bell_fd_count++] = (int)word(own, map->c, 4);
      return;
    }
}

#if defined(__x86_64__)
static __thread sigjmp_buf unreadable;
static __thread volatile int reading, stepping;
static struct sigaction old_segv, old_trap;

static int read_page(const char *from, uint64_t page[PAGE / 8]) {
  if (sigsetjmp(unreadable, 1)) {
    reading = 0;
    return 0;
  }
  reading = 1;
  for (unsigned i = 0; i < PAGE / 8; i++) page[i] = ((const volatile uint64_t *)from)[i];
  reading = 0;
  return 1;
}

static void take_shot(const void *where) {
  static uint64_t page[PAGE / 8];
  size_t told = 0;
  struct text t = {0};
  start_line(&t, "doorbell");
  add_string(&t, "path", prefix);
  add(&t, ",\"address\":%llu", (unsigned long long)(uintptr_t)where);
  end_line(&t, 0, 0);
  for (int i = 0; i < mapping_count; i++) {
    struct mapping *m = &mappings[i];
    for (size_t at = 0; m->address && at + PAGE <= m->length && told < SHOT_LIMIT; at += PAGE) {
      if (!read_page(m->address + at, page)) break;
      uint64_t sum = 0;
      for (unsigned w = 0; w < PAGE / 8; w++) sum = (sum ^ page[w]) * 0x100000001b3ull + w * (page[w] != 0);
      if (m->sums[at / PAGE] == sum) continue;
      m->sums[at / PAGE] = sum;
      struct copy c = {(unsigned char *)page, PAGE, PAGE, 1};
      struct text line = {0};
      start_line(&line, "memory");
      add_string(&line, "path", m->gpu ? "gpu" : "system");
      add(&line, ",\"address\":%llu,\"length\":%u", (unsigned long long)(uintptr_t)(m->address + at), PAGE);
      add_copy(&line, "after", &c);
      end_line(&line, 0, 0);
      told += PAGE;
    }
  }
}

static void pass_on(const struct sigaction *old, int number, siginfo_t *info, void *context) {
  if (old->sa_flags & SA_SIGINFO) old->sa_sigaction(number, info, context);
  else if (old->sa_handler != SIG_DFL && old->sa_handler != SIG_IGN) old->sa_handler(number);
  else sigaction(number, old, NULL); /* and the instruction fails again */
}

static void on_segv(int number, siginfo_t *info, void *context) {
  if (reading) siglongjmp(unreadable, 1);
  char *where = info->si_addr;
  if (!bell.address || where < bell.address || where >= bell.address + bell.length) {
    pass_on(&old_segv, number, info, context);
    return;
  }
  int before = errno;
  int writes = (((ucontext_t *)context)->uc_mcontext.gregs[REG_ERR] & 2) != 0;
  if (shots_left > 0 && writes) {
    shots_left--;
    take_shot(where);
  }
  mprotect(bell.address, bell.length, PROT_READ | PROT_WRITE);
  if (shots_left > 0) {
    stepping = 1;
    ((ucontext_t *)context)->uc_mcontext.gregs[REG_EFL] |= 0x100; /* trap after one instruction */
  }
  errno = before;
}

static void on_trap(int number, siginfo_t *info, void *context) {
  if (!stepping) {
    pass_on(&old_trap, number, info, context);
    return;
  }
  stepping = 0;
  ((ucontext_t *)context)->uc_mcontext.gregs[REG_EFL] &= ~0x100ll;
  if (shots_left > 0) mprotect(bell.address, bell.length, PROT_NONE);
}

static void watch_bell(char *address, size_t length) {
  if (bell.address) return;
  struct sigaction segv = {0}, trap = {0};
  segv.sa_sigaction = on_segv;
  trap.sa_sigaction = on_trap;
  segv.sa_flags = trap.sa_flags = SA_SIGINFO | SA_NODEFER;
  sigaction(SIGSEGV, &segv, &old_segv);
  sigaction(SIGTRAP, &trap, &old_trap);
  bell.address = address;
  bell.length = length;
  mprotect(address, length, PROT_NONE);
}
#else
static void watch_bell(char *address, size_t length) { shots_left = 0; }
#endif

static void keep_mapping(const char *path, int fd, char *address, size_t length) {
  if (!shots_left || length == 0) return;
  for (int i = 0; i < bell_fd_count; i++)
    if (bell_fds[i] == fd) {
      watch_bell(address, length);
      return;
    }
  size_t name = strlen(path);
  int gpu = name && path[name - 1] >= '0' && path[name - 1] <= '9';
  if (length > (gpu ? LARGEST_GPU : LARGEST) || mapping_count == MAPPINGS) return;
  uint64_t *sums = calloc((length + PAGE - 1) / PAGE, sizeof *sums);
  if (!sums) return;
  mappings[mapping_count++] = (struct mapping){address, length, sums, gpu};
}

int munmap(void *address, size_t length) {
  static int (*real)(void *, size_t);
  if (!real) real = (int (*)(void *, size_t))dlsym(RTLD_NEXT, "munmap");
  for (int i = 0; i < mapping_count; i++)
    if (mappings[i].address >= (char *)address && mappings[i].address < (char *)address + length)
      mappings[i].address = NULL;
  if (bell.address >= (char *)address && bell.address < (char *)address + length) bell.address = NULL;
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
  if (((request >> 8) & 255) != 'F' || request < 65536) {
    const struct rule *known = find_rule('u', request);
    size = known ? known->b : 0;
  }
  struct text t = {0};
  struct blocks blocks = {0};
  struct copy before = copy_of((uint64_t)(uintptr_t)argument, size);
  find_blocks(&blocks, request, &before);
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
    if (!(flags & MAP_ANONYMOUS) && watched_fd(fd, path)) {                                   \
      note_mmap(path, fd, length, access, flags, offset, result);                             \
      if (result != MAP_FAILED) keep_mapping(path, fd, result, length);                       \
    }                                                                                         \
    return result;                                                                            \
  }
MMAP(mmap)
MMAP(mmap64)
