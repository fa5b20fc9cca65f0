/* Loaded before the C library (LD_PRELOAD): a wall clock that a process may set, for itself alone. OpenSSL goes by it, too. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <sys/time.h>
#include <time.h>

static long long ahead_s;

int clock_gettime(clockid_t clock, struct timespec *now)
{
    int (*real)(clockid_t, struct timespec *) = (int (*)(clockid_t, struct timespec *))dlsym(RTLD_NEXT, "clock_gettime");
    int failed = real(clock, now);
    if (!failed && clock == CLOCK_REALTIME)
        now->tv_sec += ahead_s;
    return failed;
}

int clock_settime(clockid_t clock, const struct timespec *then)
{
    struct timespec now;
    int failed = clock_gettime(clock, &now);
    ahead_s += then->tv_sec - now.tv_sec;
    return failed;
}

int gettimeofday(struct timeval *restrict now, void *restrict zone)
{
    struct timespec found;
    int failed = clock_gettime(CLOCK_REALTIME, &found);
    (void)zone;
    now->tv_sec = found.tv_sec;
    now->tv_usec = found.tv_nsec / 1000;
    return failed;
}

time_t time(time_t *into)
{
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    if (into)
        *into = now.tv_sec;
    return now.tv_sec;
}
