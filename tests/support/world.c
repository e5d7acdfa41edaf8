/* What the system gives to a process, other than it is: its wall clock steps, and its storage fails.
 *
 * Loaded before libc (LD_PRELOAD). The file that WORLD names is mapped: a test changes it while the process
 * lives. CLOCK_REALTIME_COARSE, monotonic clocks and the times of files stay as they are: waits are not to
 * change with a step of the wall clock, and files have the time of the storage.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

struct world {
    volatile double ahead_s;
    volatile int error;      /* of every write below the folder; 0: none */
    char folder[1024];
};

static struct world still; /* where no file is named */
static struct world *now_in = &still;

__attribute__((constructor)) static void enter(void) {
    const char *path = getenv("WORLD");
    int file = path ? syscall(SYS_openat, AT_FDCWD, path, O_RDONLY | O_CLOEXEC) : -1;
    if (file < 0)
        return;
    void *mapped = mmap(NULL, sizeof(struct world), PROT_READ, MAP_SHARED, file, 0);
    syscall(SYS_close, file);
    if (mapped != MAP_FAILED)
        now_in = mapped;
}

static void step(struct timespec *time) {
    double ahead_s = now_in->ahead_s;
    long long whole = (long long)ahead_s;
    time->tv_sec += whole;
    time->tv_nsec += (long)((ahead_s - whole) * 1e9);
    if (time->tv_nsec >= 1000000000) {
        time->tv_nsec -= 1000000000;
        time->tv_sec++;
    }
    if (time->tv_nsec < 0) {
        time->tv_nsec += 1000000000;
        time->tv_sec--;
    }
}

int clock_gettime(clockid_t clock, struct timespec *time) {
    static int (*real)(clockid_t, struct timespec *);
    if (!real)
        real = dlsym(RTLD_NEXT, "clock_gettime");
    int result = real(clock, time);
    if (result == 0 && clock == CLOCK_REALTIME)
        step(time);
    return result;
}

int gettimeofday(struct timeval *restrict time, void *restrict zone) {
    struct timespec precise;
    (void)zone;
    clock_gettime(CLOCK_REALTIME, &precise);
    time->tv_sec = precise.tv_sec;
    time->tv_usec = precise.tv_nsec / 1000;
    return 0;
}

time_t time(time_t *result) {
    struct timespec precise;
    clock_gettime(CLOCK_REALTIME, &precise);
    if (result)
        *result = precise.tv_sec;
    return precise.tv_sec;
}

static int is_below(const char *path) {
    size_t length = strlen(now_in->folder);
    return length && strncmp(path, now_in->folder, length) == 0;
}

static int fails(int file) {
    char link[64], path[1024];
    if (!now_in->error)
        return 0;
    snprintf(link, sizeof link, "/proc/self/fd/%d", file);
    ssize_t length = syscall(SYS_readlinkat, AT_FDCWD, link, path, sizeof path - 1);
    if (length < 0)
        return 0;
    path[length] = 0;
    if (!is_below(path))
        return 0;
    errno = now_in->error;
    return 1;
}

ssize_t write(int file, const void *bytes, size_t size) {
    return fails(file) ? -1 : syscall(SYS_write, file, bytes, size);
}

int fsync(int file) {
    return fails(file) ? -1 : syscall(SYS_fsync, file);
}

int fdatasync(int file) {
    return fails(file) ? -1 : syscall(SYS_fdatasync, file);
}
