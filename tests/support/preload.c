// Replaces functions of the C library in a process, for faults that a real disk rarely has, and to
// kill it:
//   FAULT=eio:N      the Nth read fails, and all later ones
//   FAULT=short:N    no read gives more than N bytes
//   FAULT=einval:N   the Nth direct read is refused, and all later ones
//   MEMINFO=PATH     what /proc/meminfo says
//   KILL=N           kills the process before the Nth call for files; `calls` counts them
//   STOP=N           stops it (SIGSTOP) instead
//   STOP_AT_LOCK=X   stops it after it has found a file locked whose name ends so
// The process may change these variables itself. Reads without a FAULT count from 0 again.
#define _GNU_SOURCE
#include <dirent.h>
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <unistd.h>

static atomic_long reads;  // since FAULT was set

static ssize_t read_some(int file, const struct iovec* vectors, int count, off_t offset) {
  static ssize_t (*real)(int, const struct iovec*, int, off_t);
  if (real == NULL) real = dlsym(RTLD_NEXT, "preadv");
  const char* fault = getenv("FAULT");
  if (fault == NULL) {
    reads = 0;
    return real(file, vectors, count, offset);
  }
  const long number = strtol(strchr(fault, ':') + 1, NULL, 10);
  if (strncmp(fault, "short", 5) == 0) {
    struct iovec first = vectors[0];
    if (first.iov_len > (size_t)number) first.iov_len = (size_t)number;
    return real(file, &first, 1, offset);
  }
  const int direct = fcntl(file, F_GETFL) & O_DIRECT;
  if (strncmp(fault, "einval", 6) == 0) {
    if (direct && ++reads >= number) {
      errno = EINVAL;
      return -1;
    }
  } else if (++reads >= number) {
    errno = EIO;
    return -1;
  }
  return real(file, vectors, count, offset);
}

ssize_t preadv(int file, const struct iovec* vectors, int count, off_t offset) {
  return read_some(file, vectors, count, offset);
}
ssize_t preadv64(int file, const struct iovec* vectors, int count, off_t offset) {
  return read_some(file, vectors, count, offset);
}

FILE* fopen64(const char* path, const char* mode) {
  static FILE* (*real)(const char*, const char*);
  if (real == NULL) real = dlsym(RTLD_NEXT, "fopen64");
  const char* meminfo = getenv("MEMINFO");
  if (meminfo != NULL && strcmp(path, "/proc/meminfo") == 0) path = meminfo;
  return real(path, mode);
}

atomic_long calls;  // since KILL or STOP was set

static void count_call(void) {
  const char* number = getenv("KILL");
  const int end = number != NULL ? SIGKILL : SIGSTOP;
  if (number == NULL) number = getenv("STOP");
  if (number != NULL && ++calls == strtol(number, NULL, 10)) kill(getpid(), end);
}

#define COUNT(type, name, parameters, arguments)        \
  type name parameters {                                \
    static type(*real) parameters;                      \
    if (real == NULL) real = dlsym(RTLD_NEXT, #name);   \
    count_call();                                       \
    return real arguments;                              \
  }

COUNT(int, access, (const char* path, int mode), (path, mode))
COUNT(int, close, (int file), (file))
COUNT(int, faccessat, (int folder, const char* path, int mode, int flags),
      (folder, path, mode, flags))
COUNT(int, fallocate64, (int file, int mode, off_t from, off_t size), (file, mode, from, size))
COUNT(int, fchmod, (int file, mode_t mode), (file, mode))
COUNT(int, fchown, (int file, uid_t user, gid_t group), (file, user, group))
COUNT(int, fdatasync, (int file), (file))
COUNT(int, fstat64, (int file, struct stat64* status), (file, status))
COUNT(int, fsync, (int file), (file))
COUNT(int, ftruncate64, (int file, off_t size), (file, size))
COUNT(int, linkat, (int from, const char* old, int to, const char* name, int flags),
      (from, old, to, name, flags))
COUNT(int, lstat64, (const char* path, struct stat64* status), (path, status))
COUNT(int, mkdir, (const char* path, mode_t mode), (path, mode))
COUNT(int, renameat, (int from, const char* old, int to, const char* name), (from, old, to, name))
COUNT(int, rmdir, (const char* path), (path))
COUNT(int, stat64, (const char* path, struct stat64* status), (path, status))
COUNT(int, sync_file_range, (int file, off_t from, off_t size, unsigned flags),
      (file, from, size, flags))
COUNT(int, unlink, (const char* path), (path))
COUNT(int, unlinkat, (int folder, const char* path, int flags), (folder, path, flags))
COUNT(ssize_t, pwritev64, (int file, const struct iovec* vectors, int count, off_t offset),
      (file, vectors, count, offset))
COUNT(ssize_t, readlink, (const char* path, char* text, size_t size), (path, text, size))
COUNT(struct dirent64*, readdir64, (DIR * folder), (folder))

int flock(int file, int operation) {
  static int (*real)(int, int);
  if (real == NULL) real = dlsym(RTLD_NEXT, "flock");
  count_call();
  const int result = real(file, operation);
  const char* end = getenv("STOP_AT_LOCK");
  if (end == NULL || result == 0 || errno != EWOULDBLOCK) return result;
  char link[64], path[4096] = "";
  snprintf(link, sizeof(link), "/proc/self/fd/%d", file);
  if (syscall(SYS_readlinkat, AT_FDCWD, link, path, sizeof(path) - 1) > 0) {
    const size_t length = strlen(path), wanted = strlen(end);
    if (length >= wanted && strcmp(path + length - wanted, end) == 0) kill(getpid(), SIGSTOP);
  }
  errno = EWOULDBLOCK;
  return result;
}

int openat64(int folder, const char* path, int flags, ...) {
  static int (*real)(int, const char*, int, mode_t);
  if (real == NULL) real = dlsym(RTLD_NEXT, "openat64");
  va_list more;
  va_start(more, flags);
  const mode_t mode = (flags & (O_CREAT | __O_TMPFILE)) != 0 ? va_arg(more, mode_t) : 0;
  va_end(more);
  count_call();
  return real(folder, path, flags, mode);
}
