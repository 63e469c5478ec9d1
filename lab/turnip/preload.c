// Forward /dev/kgsl-3d0 to a model behind a UNIX socket: only open and ioctl are hooked.
//
// UGPU_KGSL names the socket. The first message of a connection is 'O' (open; the reply carries
// the memory file's descriptor, which stands for the device, so that mmap needs no hook) or 'J'
// (join: another thread's connection to the same program). An ioctl is {u64 request, bytes of the
// argument}; the reply {i64 errno, bytes of the argument}. Pointers in arguments are this
// process's: the model copies from and to its memory.
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/un.h>
#include <unistd.h>

static int device = -1, opener = -1;
static __thread int line = -1;

static int dial(char kind, int *file) {
  const char *path = getenv("UGPU_KGSL");
  struct sockaddr_un at = {.sun_family = AF_UNIX};
  if (!path || strlen(path) >= sizeof at.sun_path) return -1;
  strcpy(at.sun_path, path);
  int fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
  if (fd < 0) return -1;
  if (connect(fd, (struct sockaddr *)&at, sizeof at) || send(fd, &kind, 1, 0) != 1) goto bad;
  char reply, room[CMSG_SPACE(sizeof(int))];
  struct iovec piece = {&reply, 1};
  struct msghdr head = {.msg_iov = &piece, .msg_iovlen = 1, .msg_control = room,
                        .msg_controllen = sizeof room};
  if (recvmsg(fd, &head, MSG_CMSG_CLOEXEC) != 1) goto bad;
  struct cmsghdr *more = CMSG_FIRSTHDR(&head);
  if (file && more) memcpy(file, CMSG_DATA(more), sizeof(int));
  return fd;
bad:
  close(fd);
  return -1;
}

static int do_open(const char *path, int flags, int mode) {
  if (path && !strcmp(path, "/dev/kgsl-3d0")) {
    int file = -1;
    prctl(PR_SET_PTRACER, PR_SET_PTRACER_ANY, 0, 0, 0);  // the model reads nested structures
    opener = dial('O', &file);
    if (opener < 0 || file < 0) { errno = ENOENT; return -1; }
    return device = file;
  }
  return syscall(SYS_openat, AT_FDCWD, path, flags, mode);
}

int open(const char *path, int flags, ...) {
  va_list list; va_start(list, flags); int mode = va_arg(list, int); va_end(list);
  return do_open(path, flags, mode);
}

int open64(const char *path, int flags, ...) {
  va_list list; va_start(list, flags); int mode = va_arg(list, int); va_end(list);
  return do_open(path, flags, mode);
}

int ioctl(int fd, unsigned long request, ...) {
  va_list list; va_start(list, request); void *argument = va_arg(list, void *); va_end(list);
  if (fd != device || fd < 0) return syscall(SYS_ioctl, fd, request, argument);
  size_t size = request >> 16 & 0x3fff;
  unsigned char message[8 + 0x4000];
  uint64_t head = request;
  if (line < 0 && (line = dial('J', 0)) < 0) { errno = ENODEV; return -1; }
  memcpy(message, &head, 8);
  memcpy(message + 8, argument, size);
  if (send(line, message, 8 + size, MSG_NOSIGNAL) != (ssize_t)(8 + size)) { errno = ENODEV; return -1; }
  if (recv(line, message, 8 + size, 0) != (ssize_t)(8 + size)) { errno = ENODEV; return -1; }
  int64_t failed;
  memcpy(&failed, message, 8);
  memcpy(argument, message + 8, size);
  if (failed) { errno = failed; return -1; }
  return 0;
}
