/* Moves the wall clock of a process and its children by the milliseconds that the file named by
   EVERFLOW_CHAOS_CLOCK holds (8 bytes, native order). Loaded by LD_PRELOAD. Who waits on a condition
   until a moment of that clock (as librdkafka does for its time-outs) waits for that moment, too: by
   the kernel's clock alone it would wait for as long as the two are apart. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdint.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/time.h>
#include <threads.h>
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

/* Seconds that no machine is up for, and that are in the past: a moment behind them is of the wall
   clock, one before of the monotonic clock, which is right. */
#define LONG_AGO 1000000000

static struct timespec by_kernel(const struct timespec *until) {
    struct timespec at = *until;
    if (offset_ms && at.tv_sec > LONG_AGO) at.tv_sec -= *offset_ms / 1000;
    return at;
}

int cnd_timedwait(cnd_t *met, mtx_t *held, const struct timespec *restrict until) {
    static int (*real)(cnd_t *, mtx_t *, const struct timespec *);
    if (!real) real = (int (*)(cnd_t *, mtx_t *, const struct timespec *))dlsym(RTLD_NEXT, "cnd_timedwait");
    struct timespec at = by_kernel(until);
    return real(met, held, &at);
}

int pthread_cond_timedwait(pthread_cond_t *restrict met, pthread_mutex_t *restrict held,
                           const struct timespec *restrict until) {
    static int (*real)(pthread_cond_t *, pthread_mutex_t *, const struct timespec *);
    if (!real) {
        /* A look for the name alone may find a version of it that knows older conditions. */
        void *found = dlvsym(RTLD_NEXT, "pthread_cond_timedwait", "GLIBC_2.3.2");
        if (!found) found = dlsym(RTLD_NEXT, "pthread_cond_timedwait");
        real = (int (*)(pthread_cond_t *, pthread_mutex_t *, const struct timespec *))found;
    }
    struct timespec at = by_kernel(until);
    return real(met, held, &at);
}
