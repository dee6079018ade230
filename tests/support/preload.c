// Replaces functions of the C library in a process, for faults that a real disk rarely has:
//   FAULT=eio:N      the Nth read fails, and all later ones
//   FAULT=short:N    no read gives more than N bytes
//   FAULT=einval:N   the Nth direct read is refused, and all later ones
//   MEMINFO=PATH     what /proc/meminfo says
// The process may change these variables itself. Reads without a FAULT count from 0 again.
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/uio.h>

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
