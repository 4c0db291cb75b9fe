/* A bare epoll loop that measures the minimum cost of receiving the events of many open streams on this machine, with
 * one recv per event. It parses nothing and keeps nothing.
 *
 * event_reader ADDRESS PORT PATH STREAMS RAMP SECONDS: opens the streams within RAMP seconds, waits for a second, and
 * reads for SECONDS. For this last period, it prints the number of events (each ends with an empty line), the number of
 * bytes, and the user and system processor time in seconds. */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <netinet/in.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <time.h>

#define READY 1024

static long events, bytes;

static double now(void) {
    struct timespec at;
    clock_gettime(CLOCK_MONOTONIC, &at);
    return (double)at.tv_sec + at.tv_nsec / 1e9;
}

static double seconds(struct timeval time) { return (double)time.tv_sec + time.tv_usec / 1e6; }

static int open_stream(const struct sockaddr_in *server, const char *path, int poll) {
    char request[512];
    int length = snprintf(request, sizeof request, "GET %s HTTP/1.1\r\nhost: bench\r\n\r\n", path);
    int stream = socket(AF_INET, SOCK_STREAM, 0);
    struct epoll_event event = {.events = EPOLLIN | EPOLLET, .data.fd = stream};
    /* Close with a reset, so that no port that the next client needs is in TIME_WAIT. */
    struct linger reset = {.l_onoff = 1};
    setsockopt(stream, SOL_SOCKET, SO_LINGER, &reset, sizeof reset);
    return connect(stream, (const struct sockaddr *)server, sizeof *server) == 0 &&
           send(stream, request, (size_t)length, MSG_NOSIGNAL) == length &&
           epoll_ctl(poll, EPOLL_CTL_ADD, stream, &event) == 0;
}

static int read_until(int poll, double end) {
    static char piece[65536];
    struct epoll_event ready[READY];
    for (double left; (left = end - now()) > 0;) {
        int count = epoll_wait(poll, ready, READY, (int)(left * 1000) + 1);
        for (int i = 0; i < count; i++) {
            ssize_t size = recv(ready[i].data.fd, piece, sizeof piece, 0);
            if (size <= 0) return 0;
            bytes += size;
            const char *at = piece;
            while ((at = memmem(at, (size_t)(piece + size - at), "\n\n", 2)) != NULL) events++, at += 2;
        }
    }
    return 1;
}

int main(int argc, char **argv) {
    if (argc != 7) return 2;
    struct sockaddr_in server = {.sin_family = AF_INET, .sin_port = htons((unsigned short)atoi(argv[2]))};
    if (inet_pton(AF_INET, argv[1], &server.sin_addr) != 1) return 2;
    int poll = epoll_create1(0), streams = atoi(argv[4]);
    double ramp = atof(argv[5]), begin = now();
    for (int i = 0; i < streams; i++) {
        if (!open_stream(&server, argv[3], poll)) return perror("event_reader"), 1;
        if (!read_until(poll, begin + ramp * (i + 1) / streams)) return 1;
    }
    if (!read_until(poll, now() + 1)) return 1;
    struct rusage before, after;
    events = bytes = 0;
    getrusage(RUSAGE_SELF, &before);
    if (!read_until(poll, now() + atof(argv[6]))) return 1;
    getrusage(RUSAGE_SELF, &after);
    printf("%ld %ld %.6f %.6f\n", events, bytes, seconds(after.ru_utime) - seconds(before.ru_utime),
           seconds(after.ru_stime) - seconds(before.ru_stime));
    return 0;
}
