/* Shifts the time of day of a process by what a file says, for tests of clocks that jump: LD_PRELOAD, and the file's
 * name in ATTND_TEST_CLOCK. It holds one int64, nanoseconds. Clocks that never jump are left alone. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <stdint.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

static volatile const int64_t* shift;
static int (*real_clock_gettime)(clockid_t, struct timespec*);

__attribute__((constructor)) static void map_shift(void) {
  real_clock_gettime = (int (*)(clockid_t, struct timespec*))dlsym(RTLD_NEXT, "clock_gettime");
  const int fd = open(getenv("ATTND_TEST_CLOCK"), O_RDONLY);
  void* const mapped = mmap(NULL, sizeof(int64_t), PROT_READ, MAP_SHARED, fd, 0);
  if (fd < 0 || mapped == MAP_FAILED) abort();
  shift = mapped;
}

int clock_gettime(clockid_t clock, struct timespec* time) {
  const int result = real_clock_gettime != NULL ? real_clock_gettime(clock, time)
                                                : (int)syscall(SYS_clock_gettime, clock, time);
  if (result == 0 && shift != NULL && (clock == CLOCK_REALTIME || clock == CLOCK_REALTIME_COARSE)) {
    const int64_t billion = 1000000000, now = time->tv_sec * billion + time->tv_nsec + *shift;
    time->tv_sec = now / billion;
    time->tv_nsec = now % billion;
  }
  return result;
}

int gettimeofday(struct timeval* time, void* zone) {
  struct timespec now;
  (void)zone;
  clock_gettime(CLOCK_REALTIME, &now);
  time->tv_sec = now.tv_sec;
  time->tv_usec = now.tv_nsec / 1000;
  return 0;
}

time_t time(time_t* out) {
  struct timespec now;
  clock_gettime(CLOCK_REALTIME, &now);
  if (out != NULL) *out = now.tv_sec;
  return now.tv_sec;
}
