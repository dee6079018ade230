// Watches the calls of a process that change the disk.
//   DISK_LOG=PATH   appends a line for each of them to PATH, and what is written behind the line
//   DISK_FAIL=N:E   the Nth one fails with the error number E; for E = 0 it writes one byte, or, if
//                   it writes nothing, the process is killed before it
// Lines are fields that tabs separate, the first of them the process: `write INODE OFFSET SIZE`, `size INODE SIZE`, `sync INODE`,
// `name PATH INODE` (0 if the name is gone), `rename PATH PATH INODE`, `folder PATH`,
// `sync-folder PATH`. Only files below DISK_ROOT count.
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <pthread.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <unistd.h>

#define REAL(name) real_##name = dlsym(RTLD_NEXT, #name)
#define FIND(type, name, parameters)      \
  static type(*real_##name) parameters;   \
  if (real_##name == NULL) REAL(name)

static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
long calls;  // while DISK_FAIL is set

// In one call, because several processes may log.
static void append(const struct iovec* vectors, int count, size_t size) {
  const char* log = getenv("DISK_LOG");
  if (log == NULL) return;
  const int file = (int)syscall(SYS_openat, AT_FDCWD, log, O_WRONLY | O_CREAT | O_APPEND, 0600);
  if (file < 0 || syscall(SYS_writev, file, vectors, count) != (long)size) abort();
  syscall(SYS_close, file);
}

static void say(const char* format, ...) {
  char line[9000];
  const int begin = snprintf(line, sizeof(line), "%d\t", getpid());
  va_list more;
  va_start(more, format);
  const int length = begin + vsnprintf(line + begin, sizeof(line) - (size_t)begin, format, more);
  va_end(more);
  const struct iovec vector = {line, (size_t)length};
  append(&vector, 1, (size_t)length);
}

static int is_below(const char* path) {
  const char* root = getenv("DISK_ROOT");
  return root != NULL && strncmp(path, root, strlen(root)) == 0;
}

// Writes the path of a descriptor's file, or of a name in a folder.
static void path_of(int file, const char* name, char* path) {
  if (name != NULL && name[0] == '/') {
    snprintf(path, 4096, "%s", name);
    return;
  }
  char link[64];
  snprintf(link, sizeof(link), file == AT_FDCWD ? "/proc/self/cwd" : "/proc/self/fd/%d", file);
  const long length = syscall(SYS_readlinkat, AT_FDCWD, link, path, 4095);
  path[length < 0 ? 0 : length] = '\0';
  if (name != NULL) {
    const size_t used = strlen(path);
    snprintf(path + used, 4096 - used, "/%s", name);
  }
}

static int is_watched(int file) {
  struct stat status;
  char path[4096];
  if (fstat(file, &status) != 0 || (!S_ISREG(status.st_mode) && !S_ISDIR(status.st_mode))) return 0;
  path_of(file, NULL, path);
  return is_below(path);
}

// Returns the inode, and keeps it: its number must not come to mean another file.
static unsigned long inode_of(int file) {
  struct stat status;
  if (fstat(file, &status) != 0) abort();
  char link[64];
  snprintf(link, sizeof(link), "/proc/self/fd/%d", file);
  if (status.st_nlink == 0 || S_ISREG(status.st_mode)) {
    syscall(SYS_openat, AT_FDCWD, link, O_PATH | O_CLOEXEC, 0);
  }
  return status.st_ino;
}

static unsigned long inode_at(const char* path) {
  const int file = (int)syscall(SYS_openat, AT_FDCWD, path, O_PATH | O_CLOEXEC | O_NOFOLLOW, 0);
  struct stat status;
  return file >= 0 && fstat(file, &status) == 0 ? status.st_ino : 0;
}

// Returns the error number with which the next call is to fail, or -1; 0 is for a short write.
static int fault(int writes) {
  const char* how = getenv("DISK_FAIL");
  if (how == NULL || ++calls != strtol(how, NULL, 10)) return -1;
  const int error = (int)strtol(strchr(how, ':') + 1, NULL, 10);
  if (error == 0 && !writes) kill(getpid(), SIGKILL);
  return error;
}

#define BEGIN(writes)                       \
  pthread_mutex_lock(&mutex);               \
  const int error_ = fault(writes);         \
  if (error_ > 0) {                         \
    pthread_mutex_unlock(&mutex);           \
    errno = error_;                         \
    return -1;                              \
  }
#define END(result)               \
  pthread_mutex_unlock(&mutex);   \
  return result

static void log_write(int file, const struct iovec* vectors, int count, off_t at, ssize_t size) {
  char line[200];
  struct iovec all[IOV_MAX] = {{line, 0}};
  all[0].iov_len = (size_t)snprintf(line, sizeof(line), "%d\twrite\t%lu\t%lld\t%zd\n",
                                    getpid(), inode_of(file), (long long)at, size);
  const size_t total = all[0].iov_len + (size_t)size;
  int used = 1;
  for (int i = 0; i < count && size > 0 && used < IOV_MAX; ++i) {
    all[used] = vectors[i];
    if (all[used].iov_len > (size_t)size) all[used].iov_len = (size_t)size;
    size -= (ssize_t)all[used++].iov_len;
  }
  if (size > 0) abort();
  append(all, used, total);
}

ssize_t pwritev64(int file, const struct iovec* vectors, int count, off_t at) {
  FIND(ssize_t, pwritev64, (int, const struct iovec*, int, off_t));
  if (!is_watched(file)) return real_pwritev64(file, vectors, count, at);
  BEGIN(1)
  const struct iovec byte = {vectors[0].iov_base, 1};
  const ssize_t size = error_ == 0 ? real_pwritev64(file, &byte, 1, at)
                                   : real_pwritev64(file, vectors, count, at);
  if (size > 0) log_write(file, vectors, count, at, size);
  END(size);
}

ssize_t pwrite64(int file, const void* data, size_t size, off_t at) {
  const struct iovec vector = {(void*)data, size};
  return pwritev64(file, &vector, 1, at);
}

ssize_t write(int file, const void* data, size_t size) {
  FIND(ssize_t, write, (int, const void*, size_t));
  if (!is_watched(file)) return real_write(file, data, size);
  BEGIN(1)
  const off_t at = fcntl(file, F_GETFL) & O_APPEND ? lseek(file, 0, SEEK_END) : lseek(file, 0, SEEK_CUR);
  const ssize_t done = real_write(file, data, error_ == 0 ? 1 : size);
  const struct iovec vector = {(void*)data, size};
  if (done > 0) log_write(file, &vector, 1, at, done);
  END(done);
}

static int sized(int file, int result) {
  struct stat status;
  if (result == 0 && fstat(file, &status) == 0) {
    say("size\t%lu\t%lld\n", inode_of(file), (long long)status.st_size);
  }
  return result;
}

int ftruncate64(int file, off_t size) {
  FIND(int, ftruncate64, (int, off_t));
  if (!is_watched(file)) return real_ftruncate64(file, size);
  BEGIN(0)
  END(sized(file, real_ftruncate64(file, size)));
}
int ftruncate(int file, off_t size) { return ftruncate64(file, size); }

int fallocate64(int file, int mode, off_t from, off_t size) {
  FIND(int, fallocate64, (int, int, off_t, off_t));
  if (!is_watched(file)) return real_fallocate64(file, mode, from, size);
  BEGIN(0)
  END(sized(file, real_fallocate64(file, mode, from, size)));
}

static int synced(int file, int result) {
  struct stat status;
  char path[4096];
  if (result != 0 || fstat(file, &status) != 0) return result;
  path_of(file, NULL, path);
  if (S_ISDIR(status.st_mode)) {
    say("sync-folder\t%s\n", path);
  } else {
    say("sync\t%lu\n", (unsigned long)status.st_ino);
  }
  return 0;
}

int fsync(int file) {
  FIND(int, fsync, (int));
  if (!is_watched(file)) return real_fsync(file);
  BEGIN(0)
  END(synced(file, real_fsync(file)));
}
int fdatasync(int file) {
  FIND(int, fdatasync, (int));
  if (!is_watched(file)) return real_fdatasync(file);
  BEGIN(0)
  END(synced(file, real_fdatasync(file)));
}

int linkat(int from, const char* old, int to, const char* name, int flags) {
  FIND(int, linkat, (int, const char*, int, const char*, int));
  char path[4096];
  path_of(to, name, path);
  if (!is_below(path)) return real_linkat(from, old, to, name, flags);
  BEGIN(0)
  const int result = real_linkat(from, old, to, name, flags);
  if (result == 0) say("name\t%s\t%lu\n", path, inode_at(path));
  END(result);
}

int renameat(int from, const char* old, int to, const char* name) {
  FIND(int, renameat, (int, const char*, int, const char*));
  char before[4096], after[4096];
  path_of(from, old, before);
  path_of(to, name, after);
  if (!is_below(after)) return real_renameat(from, old, to, name);
  BEGIN(0)
  inode_at(after);  // keeps what is replaced
  const int result = real_renameat(from, old, to, name);
  if (result == 0) say("rename\t%s\t%s\t%lu\n", before, after, inode_at(after));
  END(result);
}
int rename(const char* old, const char* name) { return renameat(AT_FDCWD, old, AT_FDCWD, name); }

int unlinkat(int folder, const char* name, int flags) {
  FIND(int, unlinkat, (int, const char*, int));
  char path[4096];
  path_of(folder, name, path);
  if (!is_below(path)) return real_unlinkat(folder, name, flags);
  BEGIN(0)
  inode_at(path);
  const int result = real_unlinkat(folder, name, flags);
  if (result == 0) say("name\t%s\t0\n", path);
  END(result);
}
int unlink(const char* path) { return unlinkat(AT_FDCWD, path, 0); }
int rmdir(const char* path) { return unlinkat(AT_FDCWD, path, AT_REMOVEDIR); }

int mkdir(const char* name, mode_t mode) {
  FIND(int, mkdir, (const char*, mode_t));
  char path[4096];
  path_of(AT_FDCWD, name, path);
  if (!is_below(path)) return real_mkdir(name, mode);
  BEGIN(0)
  const int result = real_mkdir(name, mode);
  if (result == 0) say("folder\t%s\n", path);
  END(result);
}

int openat64(int folder, const char* name, int flags, ...) {
  FIND(int, openat64, (int, const char*, int, ...));
  va_list more;
  va_start(more, flags);
  const mode_t mode = (flags & (O_CREAT | __O_TMPFILE)) != 0 ? va_arg(more, mode_t) : 0;
  va_end(more);
  char path[4096];
  path_of(folder, name, path);
  if ((flags & (O_CREAT | O_TRUNC | __O_TMPFILE)) == 0 || !is_below(path)) {
    return real_openat64(folder, name, flags, mode);
  }
  BEGIN(0)
  const int is_new = access(path, F_OK) != 0;
  const int file = real_openat64(folder, name, flags, mode);
  if (file >= 0 && (flags & __O_TMPFILE) != __O_TMPFILE) {
    if (is_new) say("name\t%s\t%lu\n", path, inode_of(file));
    if (flags & O_TRUNC) say("size\t%lu\t0\n", inode_of(file));
  }
  END(file);
}
int open64(const char* name, int flags, ...) {
  va_list more;
  va_start(more, flags);
  const mode_t mode = (flags & (O_CREAT | __O_TMPFILE)) != 0 ? va_arg(more, mode_t) : 0;
  va_end(more);
  return openat64(AT_FDCWD, name, flags, mode);
}
