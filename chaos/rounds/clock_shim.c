/* Moves the wall clock of a process and its children by the milliseconds that the file named by
   EVERFLOW_CHAOS_CLOCK holds (8 bytes, native order). Loaded by LD_PRELOAD. Only the calls that ask
   for the wall clock are answered here: what waits for a moment of it waits by the kernel's. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <stdint.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

static volatile int64_t *offset_ms;
static int (*real_clock_gettime)(clockid_t, struct timespec *);

__attribute__((constructor)) static void open_clock(void) {
    const char *path = getenv("EVERFLOW_CHAOS_CLOCK");
    int file = path ? open(path, O_RDONLY | O_CLOEXEC) : -1;
    if (file >= 0) {
        void *there = mmap(NULL, 8, PROT_READ, MAP_SHARED, file, 0);
        if (there != MAP_FAILED) offset_ms = there;
        close(file);
    }
}

int clock_gettime(clockid_t id, struct timespec *now) {
    if (!real_clock_gettime)
        real_clock_gettime = (int (*)(clockid_t, struct timespec *))dlsym(RTLD_NEXT, "clock_gettime");
    int failed = real_clock_gettime(id, now);
    if (!failed && offset_ms && (id == CLOCK_REALTIME || id == CLOCK_REALTIME_COARSE)) {
        int64_t ns = now->tv_nsec + (*offset_ms % 1000) * 1000000;
        now->tv_sec += *offset_ms / 1000;
        if (ns < 0) { ns += 1000000000; now->tv_sec--; }
        if (ns >= 1000000000) { ns -= 1000000000; now->tv_sec++; }
        now->tv_nsec = ns;
    }
    return failed;
}

int gettimeofday(struct timeval *restrict now, void *restrict zone) {
    struct timespec at;
    (void)zone;
    if (clock_gettime(CLOCK_REALTIME, &at)) return -1;
    now->tv_sec = at.tv_sec;
    now->tv_usec = at.tv_nsec / 1000;
    return 0;
}

time_t time(time_t *where) {
    struct timespec at;
    clock_gettime(CLOCK_REALTIME, &at);
    if (where) *where = at.tv_sec;
    return at.tv_sec;
}
