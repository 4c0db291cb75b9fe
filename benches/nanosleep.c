/* A bare clock_nanosleep loop that measures how late this machine wakes a thread, at best.
 *
 * nanosleep RATE SECONDS: sleeps until each of RATE * SECONDS evenly spaced points in time, and
 * prints the delays of its wake-ups in microseconds: p50, p99, max. It does not sleep for points
 * that have already passed. */
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

static long long ns(struct timespec at) { return at.tv_sec * 1000000000LL + at.tv_nsec; }

static int compare(const void *a, const void *b) {
    long long x = *(const long long *)a, y = *(const long long *)b;
    return (x > y) - (x < y);
}

int main(int argc, char **argv) {
    if (argc != 3) return 2;
    double rate = atof(argv[1]);
    long count = (long)(rate * atof(argv[2]));
    long long *late = malloc(sizeof *late * (size_t)(count > 0 ? count : 1));
    if (count < 1 || !late) return 2;
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    long long start = ns(now) + 10000000;
    for (long i = 0; i < count; i++) {
        long long due = start + (long long)(i * 1e9 / rate);
        struct timespec at = {due / 1000000000, due % 1000000000};
        while (clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &at, NULL) != 0) {}
        clock_gettime(CLOCK_MONOTONIC, &now);
        late[i] = ns(now) - due;
    }
    qsort(late, (size_t)count, sizeof *late, compare);
    printf("%.1f %.1f %.1f\n", late[count / 2] / 1e3, late[count * 99 / 100] / 1e3, late[count - 1] / 1e3);
    free(late);
    return 0;
}
