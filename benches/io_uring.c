/* The bare loop of keepalive.c over io_uring: sends requests in batches, and receives answers
 * without a system call for each. It parses nothing and keeps nothing.
 *
 * io_uring PORT CONNECTIONS SECONDS ANSWERS: waits for ANSWERS answers at a time, and prints the
 * total number of answers. Each answer must fit into one segment. */
#include <arpa/inet.h>
#include <linux/io_uring.h>
#include <netinet/in.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#define ENTRIES 1024 /* size of each queue, and number of buffers */
#define BUFFER 1024

static const char request[] = "GET / HTTP/1.1\r\nhost: 127.0.0.1:40000\r\nuser-agent: rolldrop/0.1.0\r\n"
                              "rolldrop-id: load-0-1234567\r\n\r\n";

static int ring;
static char *rings;
static struct io_uring_params params;
static struct io_uring_sqe *entries;
static unsigned tail;
static char buffers[ENTRIES][BUFFER];
static struct io_uring_buf_ring *spare;

static double now(void) {
    struct timespec at;
    clock_gettime(CLOCK_MONOTONIC, &at);
    return (double)at.tv_sec + at.tv_nsec / 1e9;
}

static unsigned *at(unsigned offset) { return (unsigned *)(rings + offset); }

static void fail(const char *what) {
    perror(what);
    exit(1);
}

static void reg(unsigned what, void *argument, unsigned count) {
    if (syscall(__NR_io_uring_register, ring, what, argument, count) != 0) fail("io_uring_register");
}

static void set_up(void) {
    params.flags = IORING_SETUP_SINGLE_ISSUER | IORING_SETUP_DEFER_TASKRUN;
    ring = (int)syscall(__NR_io_uring_setup, ENTRIES, &params);
    if (ring < 0) fail("io_uring_setup");
    int access = PROT_READ | PROT_WRITE;
    size_t size = params.cq_off.cqes + params.cq_entries * sizeof(struct io_uring_cqe);
    size_t indices = params.sq_off.array + ENTRIES * sizeof(unsigned);
    rings = mmap(NULL, size > indices ? size : indices, access, MAP_SHARED, ring, IORING_OFF_SQ_RING);
    entries = mmap(NULL, ENTRIES * sizeof *entries, access, MAP_SHARED, ring, IORING_OFF_SQES);
    spare = mmap(NULL, ENTRIES * sizeof(struct io_uring_buf), access, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (rings == MAP_FAILED || entries == MAP_FAILED || spare == MAP_FAILED) fail("mmap");
    for (unsigned i = 0; i < ENTRIES; i++) at(params.sq_off.array)[i] = i;
    struct io_uring_buf_reg group = {.ring_addr = (unsigned long)spare, .ring_entries = ENTRIES};
    reg(IORING_REGISTER_PBUF_RING, &group, 1);
}

static void give(unsigned short buffer) {
    struct io_uring_buf *place = &spare->bufs[spare->tail & (ENTRIES - 1)];
    place->addr = (unsigned long)buffers[buffer];
    place->len = BUFFER;
    place->bid = buffer;
    __atomic_store_n(&spare->tail, spare->tail + 1, __ATOMIC_RELEASE);
}

static struct io_uring_sqe *ask(int operation, int connection) {
    struct io_uring_sqe *entry = &entries[tail++ & (ENTRIES - 1)];
    memset(entry, 0, sizeof *entry);
    entry->opcode = (unsigned char)operation;
    entry->flags = IOSQE_FIXED_FILE;
    entry->fd = connection;
    entry->user_data = (unsigned long)connection;
    return entry;
}

static void ask_answers(int connection) {
    struct io_uring_sqe *entry = ask(IORING_OP_RECV, connection);
    entry->flags |= IOSQE_BUFFER_SELECT;
    entry->ioprio = IORING_RECV_MULTISHOT;
}

static void ask_send(int connection) {
    struct io_uring_sqe *entry = ask(IORING_OP_SEND, connection);
    /* A failed send is still reported, as a completion with an error. */
    entry->flags |= IOSQE_CQE_SKIP_SUCCESS;
    entry->addr = (unsigned long)request;
    entry->len = sizeof request - 1;
    entry->msg_flags = MSG_NOSIGNAL | MSG_WAITALL;
}

int main(int argc, char **argv) {
    if (argc != 5) return 2;
    int connections = atoi(argv[2]), sockets[ENTRIES / 2];
    if (connections < 1 || connections > ENTRIES / 2) return 2;
    struct sockaddr_in server = {.sin_family = AF_INET, .sin_port = htons((unsigned short)atoi(argv[1]))};
    server.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    for (int i = 0; i < connections; i++) {
        sockets[i] = socket(AF_INET, SOCK_STREAM, 0);
        if (connect(sockets[i], (struct sockaddr *)&server, sizeof server) != 0) fail("connect");
    }
    set_up();
    reg(IORING_REGISTER_FILES, sockets, (unsigned)connections);
    for (unsigned short i = 0; i < ENTRIES; i++) give(i);
    for (int i = 0; i < connections; i++) ask_answers(i), ask_send(i);
    long answered = 0;
    unsigned seen = 0, *head = at(params.cq_off.head), mask = *at(params.cq_off.ring_mask);
    struct io_uring_cqe *completions = (struct io_uring_cqe *)at(params.cq_off.cqes);
    for (double end = now() + atof(argv[3]); now() < end;) {
        unsigned begun = *at(params.sq_off.tail);
        __atomic_store_n(at(params.sq_off.tail), tail, __ATOMIC_RELEASE);
        int flags = IORING_ENTER_GETEVENTS;
        if (syscall(__NR_io_uring_enter, ring, tail - begun, atoi(argv[4]), flags, NULL, 0) < 0) fail("io_uring_enter");
        while (seen != __atomic_load_n(at(params.cq_off.tail), __ATOMIC_ACQUIRE)) {
            struct io_uring_cqe *completion = &completions[seen++ & mask];
            int connection = (int)completion->user_data;
            if (completion->res <= 0) return 1;
            answered++;
            give((unsigned short)(completion->flags >> IORING_CQE_BUFFER_SHIFT));
            if (!(completion->flags & IORING_CQE_F_MORE)) ask_answers(connection);
            ask_send(connection);
        }
        __atomic_store_n(head, seen, __ATOMIC_RELEASE);
    }
    printf("%ld\n", answered);
    return 0;
}
