/* Memory: pages of the program's mappings that changed, at each write of a doorbell. Pages of doorbells
 * are made inaccessible; a write of one stops in a signal handler, which records, makes the pages
 * accessible with the access that they were mapped with, and steps over the one instruction. Other threads
 * may pass meanwhile unseen. CUDA maps two doorbells on Hopper, in BAR0 and in BAR1, for writing only, and
 * rings the second; its rings lie in 2 MiB of video memory, mapped through BAR1.
 * KGSL's work is submitted by a call, at which the same is recorded. */
#define KEPT 16
#define MAPPINGS 256
#define PAGE 4096u
#define LARGEST (64u << 20)
#define LARGEST_GPU (4u << 20)
#define SHOT_LIMIT (8u << 20)

struct mapping {
  char *address;
  size_t length;
  uint64_t *sums;
  int gpu;
};

struct bell {
  char *address;
  size_t length;
  int access;
};

static struct mapping mappings[MAPPINGS];
static struct bell bells[KEPT];
static int shooting;
static int mapping_count, bell_count, bell_handle_count, bell_fd_count;
static uint32_t bell_handles[KEPT];
static int bell_fds[KEPT]; /* each is the file of one mapping to come; files are used again */

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
static struct sigaction old_segv, old_trap, old_bus;

/* Non-temporal loads (SSE4.1): of write-combining memory, such as BAR1, they fetch 64 bytes at a time. */
static int read_page(const char *from, uint64_t page[PAGE / 8]) {
  if (sigsetjmp(unreadable, 1)) {
    reading = 0;
    return 0;
  }
  reading = 1;
  for (unsigned i = 0; i < PAGE; i += 16)
    __asm__ volatile("movntdqa (%0), %%xmm0\n\tmovdqa %%xmm0, (%1)"
                     : : "r"(from + i), "r"((char *)page + i) : "xmm0", "memory");
  reading = 0;
  return 1;
}

/* Record what changed, unless as many were recorded as were asked for; one thread at a time. */
static void take_shot(const void *where) {
  static _Alignas(16) uint64_t page[PAGE / 8];
  size_t told = 0;
  struct text t = {0};
  while (__sync_lock_test_and_set(&shooting, 1)) sched_yield();
  if (shots_left <= 0) {
    __sync_lock_release(&shooting);
    return;
  }
  shots_left--;
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
  __sync_lock_release(&shooting);
}

static void pass_on(const struct sigaction *old, int number, siginfo_t *info, void *context) {
  if (old->sa_flags & SA_SIGINFO) old->sa_sigaction(number, info, context);
  else if (old->sa_handler != SIG_DFL && old->sa_handler != SIG_IGN) old->sa_handler(number);
  else sigaction(number, old, NULL); /* and the instruction fails again */
}

static void open_bells(int open) {
  for (int i = 0; i < bell_count; i++)
    if (bells[i].address) mprotect(bells[i].address, bells[i].length, open ? bells[i].access : PROT_NONE);
}

static int in_bell(const char *where) {
  for (int i = 0; i < bell_count; i++)
    if (bells[i].address && where >= bells[i].address && where < bells[i].address + bells[i].length) return 1;
  return 0;
}

static void on_segv(int number, siginfo_t *info, void *context) {
  if (reading) siglongjmp(unreadable, 1);
  char *where = info->si_addr;
  if (!in_bell(where)) {
    pass_on(&old_segv, number, info, context);
    return;
  }
  int before = errno;
  int writes = (((ucontext_t *)context)->uc_mcontext.gregs[REG_ERR] & 2) != 0;
  /* Stepping already: another thread closed the pages before this one's instruction. */
  if (writes && !stepping) take_shot(where);
  open_bells(1);
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
  if (shots_left > 0) open_bells(0);
}

static void on_bus(int number, siginfo_t *info, void *context) {
  if (reading) siglongjmp(unreadable, 1);
  pass_on(&old_bus, number, info, context);
}

static void note_submit(unsigned long request) {
  if (shots_left > 0 && find_rule('s', (uint32_t)request)) take_shot(NULL);
}

static void watch_bell(char *address, size_t length, int access) {
  int place = 0;
  while (place < bell_count && bells[place].address) place++;
  if (place == KEPT) return;
  struct sigaction segv = {0}, trap = {0}, bus = {0};
  segv.sa_sigaction = on_segv;
  trap.sa_sigaction = on_trap;
  bus.sa_sigaction = on_bus;
  segv.sa_flags = trap.sa_flags = bus.sa_flags = SA_SIGINFO | SA_NODEFER;
  if (!bell_count) {
    sigaction(SIGSEGV, &segv, &old_segv);
    sigaction(SIGTRAP, &trap, &old_trap);
    sigaction(SIGBUS, &bus, &old_bus);
  }
  bells[place] = (struct bell){address, length, access};
  if (place == bell_count) bell_count++;
  mprotect(address, length, PROT_NONE);
}
#else
static void watch_bell(char *address, size_t length, int access) { shots_left = 0; }
static void note_submit(unsigned long request) {}
#endif

static void keep_mapping(const char *path, int fd, char *address, size_t length, int access) {
  if (!shots_left || length == 0) return;
  for (int i = 0; i < bell_fd_count; i++)
    if (bell_fds[i] == fd) {
      bell_fds[i] = bell_fds[--bell_fd_count];
      watch_bell(address, length, access);
      return;
    }
  size_t name = strlen(path);
  int submits = 0, place = 0;
  for (int i = 0; i < rule_count; i++) submits |= rules[i].kind == 's';
  int gpu = !submits && name && path[name - 1] >= '0' && path[name - 1] <= '9';
  if (length > (gpu ? LARGEST_GPU : LARGEST)) return;
  uint64_t *sums = calloc((length + PAGE - 1) / PAGE, sizeof *sums);
  if (!sums) return;
  while (place < mapping_count && mappings[place].address) place++;
  if (place == MAPPINGS) {
    free(sums);
    return;
  }
  if (place == mapping_count) mapping_count++;
  else free(mappings[place].sums);
  mappings[place] = (struct mapping){address, length, sums, gpu};
}

/* What begins in a range is mapped there no more. */
static void forget_mappings(const char *address, size_t length) {
  for (int i = 0; i < mapping_count; i++)
    if (mappings[i].address >= address && mappings[i].address < address + length) mappings[i].address = NULL;
  for (int i = 0; i < bell_count; i++)
    if (bells[i].address >= address && bells[i].address < address + length) bells[i].address = NULL;
}
