/* Many clients from one process: each connection has one request in flight and walks through its own cycle.
 *
 *   load SOCKET SCRIPT SECONDS FIRST
 *
 * SCRIPT: blocks parted by empty lines, one block a connection. The first line is sent first (hello); lines
 * that begin with "!" come next, once; the rest is the cycle. "@@@@@@@@" in a cycle line becomes an 8-digit
 * number, one for each walk through the cycle, counted from FIRST over all connections. After one untimed
 * walk everybody starts together. Prints one JSON line; latencies in microseconds, `kinds` by line of the cycle.
 */
#include <errno.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <time.h>
#include <unistd.h>

#define LINES 32
#define CONNS 1024
#define REPLY (1 << 20)
#define SAMPLES (1 << 21)

typedef struct {
    int fd, lines, setup, at;
    uint64_t serial;
    char *line[LINES];
    size_t size[LINES];
    uint64_t sent;
    size_t got;
    char *reply;
} Conn;

static Conn conns[CONNS];
static uint32_t *samples[LINES];
static size_t counts[LINES];
static uint64_t number, failures;
static char first_failure[400];

static uint64_t now(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

static void die(const char *what) {
    fprintf(stderr, "load: %s: %s\n", what, strerror(errno));
    exit(1);
}

static void stamp(char *line, uint64_t n) {
    char digits[9];
    snprintf(digits, sizeof digits, "%08llu", (unsigned long long)(n % 100000000u));
    for (char *p = line; (p = strstr(p, "@@@@@@@@")); p += 8) memcpy(p, digits, 8);
}

static void transmit(Conn *c, char *line, size_t size) {
    c->sent = now();
    c->got = 0;
    for (size_t done = 0; done < size;) {
        ssize_t n = send(c->fd, line + done, size - done, MSG_NOSIGNAL);
        if (n < 0) die("send");
        done += (size_t)n;
    }
}

static void issue(Conn *c) {
    static char buffer[65536];
    if (c->at == c->setup) c->serial = number++;
    memcpy(buffer, c->line[c->at], c->size[c->at] + 1);
    stamp(buffer, c->serial);
    transmit(c, buffer, c->size[c->at]);
}

static int receive(Conn *c) { /* 1: a whole reply is there */
    ssize_t n = recv(c->fd, c->reply + c->got, REPLY - 1 - c->got, 0);
    if (n <= 0) die("recv");
    c->got += (size_t)n;
    if (c->reply[c->got - 1] != '\n') return 0;
    c->reply[c->got] = 0;
    if (strstr(c->reply, "\"error\":{")) {
        if (!failures++) snprintf(first_failure, sizeof first_failure, "%.380s", c->reply);
    }
    return 1;
}

static void wait_reply(Conn *c) {
    while (!receive(c)) {}
}

static int by_size(const void *a, const void *b) {
    uint32_t x = *(const uint32_t *)a, y = *(const uint32_t *)b;
    return x < y ? -1 : x > y;
}

static int read_script(const char *path) {
    FILE *file = fopen(path, "r");
    char *line = NULL;
    size_t room = 0;
    ssize_t n;
    int conn = 0;
    if (!file) die(path);
    while ((n = getline(&line, &room, file)) > 0) {
        Conn *c = &conns[conn];
        if (n == 1) { conn++; continue; }
        int setup = line[0] == '!';
        if (c->lines == LINES || conn == CONNS) { errno = E2BIG; die(path); }
        c->line[c->lines] = strdup(line + setup);
        c->size[c->lines++] = (size_t)(n - setup);
        if (c->lines == 1 || setup) c->setup = c->lines;
    }
    fclose(file);
    return conns[conn].lines ? conn + 1 : conn;
}

static void print_kinds(uint64_t ns) {
    size_t ops = 0;
    for (int k = 0; k < LINES; k++) ops += counts[k];
    printf("{\"ops\":%zu,\"seconds\":%.6f,\"failures\":%llu,\"kinds\":[", ops, (double)ns / 1e9,
           (unsigned long long)failures);
    for (int k = 0; k < LINES && counts[k]; k++) {
        qsort(samples[k], counts[k], sizeof(uint32_t), by_size);
        printf("%s{\"n\":%zu,\"p50\":%.2f,\"p99\":%.2f,\"max\":%.2f}", k ? "," : "", counts[k],
               samples[k][counts[k] / 2] / 1e3, samples[k][counts[k] * 99 / 100] / 1e3,
               samples[k][counts[k] - 1] / 1e3);
    }
    printf("]}\n");
    if (failures) fprintf(stderr, "load: %s\n", first_failure);
}

int main(int argc, char **argv) {
    if (argc != 5) { fprintf(stderr, "usage: load SOCKET SCRIPT SECONDS FIRST\n"); return 2; }
    int n = read_script(argv[2]), poller = epoll_create1(EPOLL_CLOEXEC);
    struct sockaddr_un where = {.sun_family = AF_UNIX};
    strncpy(where.sun_path, argv[1], sizeof where.sun_path - 1);
    number = strtoull(argv[4], NULL, 10);
    for (int i = 0; i < n; i++) {
        Conn *c = &conns[i];
        c->fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
        c->reply = malloc(REPLY);
        if (!c->reply || connect(c->fd, (struct sockaddr *)&where, sizeof where)) die("connect");
        for (int k = 0; k < c->setup; k++) { transmit(c, c->line[k], c->size[k]); wait_reply(c); }
        for (c->at = c->setup; c->at < c->lines; c->at++) { issue(c); wait_reply(c); }
        c->at = c->setup;
        struct epoll_event want = {.events = EPOLLIN, .data.ptr = c};
        if (epoll_ctl(poller, EPOLL_CTL_ADD, c->fd, &want)) die("epoll_ctl");
    }
    for (int k = 0; k < LINES; k++)
        if (!(samples[k] = malloc(SAMPLES * sizeof(uint32_t)))) die("malloc");
    printf("ready\n");
    fflush(stdout);
    uint64_t began = now(), until = began + (uint64_t)(strtod(argv[3], NULL) * 1e9);
    int busy = n;
    for (int i = 0; i < n; i++) issue(&conns[i]);
    while (busy) {
        struct epoll_event ready[64];
        int found = epoll_wait(poller, ready, 64, -1);
        for (int i = 0; i < found; i++) {
            Conn *c = ready[i].data.ptr;
            if (!receive(c)) continue;
            uint64_t t = now();
            int kind = c->at - c->setup;
            if (t < until && counts[kind] < SAMPLES) samples[kind][counts[kind]++] = (uint32_t)(t - c->sent);
            c->at = c->at + 1 == c->lines ? c->setup : c->at + 1;
            /* Past the end each cycle is finished, so that nothing stays held. */
            if (t < until || c->at != c->setup) issue(c); else busy--;
        }
    }
    print_kinds(until - began);
    return failures ? 3 : 0;
}
