// Ends the process, or fails a call, at the n-th step of writing under a folder: a step is each open for writing,
// write, half of a write, fsync, rename and unlink. Under the server by LD_PRELOAD:
//   ATTND_TEST_FOLDER: the folder, absolute
//   ATTND_TEST_STEP: n, from 1
//   ATTND_TEST_ERRNO: what the n-th step fails with; absent: SIGKILL before it
//   ATTND_TEST_STEPS: a file that gets a line for each step
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static int step_count;

static int under_folder(int descriptor) {
  char link[64], path[PATH_MAX];
  const char* const folder = getenv("ATTND_TEST_FOLDER");
  snprintf(link, sizeof(link), "/proc/self/fd/%d", descriptor);
  const ssize_t bytes = readlink(link, path, sizeof(path) - 1);
  if (folder == NULL || bytes < 0) return 0;
  path[bytes] = 0;
  return strncmp(path, folder, strlen(folder)) == 0;
}

// 1: the step is to fail, errno says with what.
static int fails(const char* what) {
  const int saved = errno;
  const int step = __atomic_add_fetch(&step_count, 1, __ATOMIC_SEQ_CST);
  static ssize_t (*real_write)(int, const void*, size_t);
  if (real_write == NULL) real_write = (ssize_t(*)(int, const void*, size_t))dlsym(RTLD_NEXT, "write");
  const int told = open(getenv("ATTND_TEST_STEPS"), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0600);
  if (real_write(told, what, strlen(what)) < 0 || real_write(told, "\n", 1) < 0) abort();
  close(told);
  errno = saved;
  if (step != atoi(getenv("ATTND_TEST_STEP"))) return 0;
  if (getenv("ATTND_TEST_ERRNO") == NULL) raise(SIGKILL);
  errno = atoi(getenv("ATTND_TEST_ERRNO"));
  return 1;
}

int openat(int folder, const char* name, int flags, ...) {
  static int (*real)(int, const char*, int, ...);
  if (real == NULL) real = (int (*)(int, const char*, int, ...))dlsym(RTLD_NEXT, "openat");
  va_list rest;
  va_start(rest, flags);
  const int mode = (flags & O_CREAT) != 0 ? va_arg(rest, int) : 0;
  va_end(rest);
  if ((flags & O_CREAT) != 0 && under_folder(folder) && fails("open")) return -1;
  return real(folder, name, flags, mode);
}

ssize_t write(int file, const void* bytes, size_t count) {
  static ssize_t (*real)(int, const void*, size_t);
  if (real == NULL) real = (ssize_t(*)(int, const void*, size_t))dlsym(RTLD_NEXT, "write");
  if (!under_folder(file)) return real(file, bytes, count);
  if (fails("write")) return -1;
  const ssize_t half = real(file, bytes, count / 2);
  if (half < 0) return half;
  if (fails("half")) return -1;
  const ssize_t rest = real(file, (const char*)bytes + half, count - (size_t)half);
  return rest < 0 ? half : half + rest;
}

int fsync(int file) {
  static int (*real)(int);
  if (real == NULL) real = (int (*)(int))dlsym(RTLD_NEXT, "fsync");
  return under_folder(file) && fails("fsync") ? -1 : real(file);
}

int renameat(int from_folder, const char* from, int to_folder, const char* to) {
  static int (*real)(int, const char*, int, const char*);
  if (real == NULL) real = (int (*)(int, const char*, int, const char*))dlsym(RTLD_NEXT, "renameat");
  return under_folder(from_folder) && fails("rename") ? -1 : real(from_folder, from, to_folder, to);
}

int unlinkat(int folder, const char* name, int flags) {
  static int (*real)(int, const char*, int);
  if (real == NULL) real = (int (*)(int, const char*, int))dlsym(RTLD_NEXT, "unlinkat");
  return under_folder(folder) && fails("unlink") ? -1 : real(folder, name, flags);
}
