/* A bare epoll loop that measures the minimum cost of keep-alive requests on this machine, with one
 * send and one recv per request. It parses nothing and keeps nothing.
 *
 * keepalive PORT CONNECTIONS SECONDS: sends a request to 127.0.0.1 over each connection as soon as
 * the previous answer has arrived, and prints the number of answers. Each answer must fit into one
 * segment. */
#include <arpa/inet.h>
#include <netinet/in.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <time.h>

#define EVENTS 1024

static const char request[] = "GET / HTTP/1.1\r\nhost: 127.0.0.1:40000\r\nuser-agent: rolldrop/0.1.0\r\n"
                              "rolldrop-id: load-0-1234567\r\n\r\n";

static double now(void) {
    struct timespec at;
    clock_gettime(CLOCK_MONOTONIC, &at);
    return (double)at.tv_sec + at.tv_nsec / 1e9;
}

static int send_to(int socket) {
    return send(socket, request, sizeof request - 1, MSG_NOSIGNAL) == sizeof request - 1;
}

int main(int argc, char **argv) {
    if (argc != 4) return 2;
    struct sockaddr_in server = {.sin_family = AF_INET, .sin_port = htons((unsigned short)atoi(argv[1]))};
    server.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    int poll = epoll_create1(0);
    for (int i = atoi(argv[2]); i > 0; i--) {
        int connection = socket(AF_INET, SOCK_STREAM, 0);
        struct epoll_event event = {.events = EPOLLIN | EPOLLET, .data.fd = connection};
        if (connect(connection, (struct sockaddr *)&server, sizeof server) != 0) return 1;
        if (epoll_ctl(poll, EPOLL_CTL_ADD, connection, &event) != 0 || !send_to(connection)) return 1;
    }
    long answered = 0;
    char answer[8192];
    struct epoll_event events[EVENTS];
    for (double end = now() + atof(argv[3]); now() < end;) {
        int ready = epoll_wait(poll, events, EVENTS, 1000);
        for (int i = 0; i < ready; i++) {
            if (recv(events[i].data.fd, answer, sizeof answer, 0) <= 0) return 1;
            answered++;
            if (!send_to(events[i].data.fd)) return 1;
        }
    }
    printf("%ld\n", answered);
    return 0;
}
