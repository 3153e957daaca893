/* A load generator that believes nothing: it counts a request only when its reply is right to the last byte.
 *
 *     load -p PORT [-c CONNECTIONS] [-d DEPTH] [-t SECONDS] [-k KEY] [-g GROUP] [-w] WORKLOAD=REQUESTS...
 *
 * Workloads run one after the other on the same connections and print a line of JSON each; with -w each waits for a
 * line on standard input before it starts:
 *
 *     ping         +PONG
 *     xadd         appends an entry of one 100-byte value that begins with the request's number
 *     xreadgroup   reads one new entry; connection i is consumer "ci". The entry must be one that was appended
 *                  here, under the id that was answered then, with its own value, and not handed out before
 *     xack         acknowledges an id that was read; the reply must be 1
 *
 * The group has to exist and the key must hold nothing else. A connection sends DEPTH requests at once and the
 * next ones when all are answered; latency is from sending to the reply being read. An error, a nil, any other
 * wrong reply, a closed connection, or more than SECONDS in all ends the run with status 1 and says why.
 */

#define _GNU_SOURCE
#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

enum { VALUE = 100, NUMBER = 16, REQUEST = 512, REPLY = 1024, NAME = 64 };

typedef struct { uint64_t ms, seq; } Id;

typedef struct {
    int fd, index;
    bool wants_out;             /* epoll tells us when it can be written to */
    char *out, *in;
    size_t out_size, out_sent, in_size;
    int outstanding, answered;  /* of the batch under way */
    uint64_t *numbers;          /* the number of each request of the batch */
    uint64_t sent_at;
    Id last;                    /* the id answered last: the next one must be larger */
} Connection;

typedef struct Workload {
    const char *name;
    size_t (*write)(char *at, Connection *connection, uint64_t number);
    /* Bytes of the reply at the front; 0 if it is not all there, -1 if it is wrong. */
    int (*check)(const char *at, const char *end, Connection *connection, uint64_t number);
} Workload;

static int port, connection_count = 50, depth = 16, limit_s = 60;
static bool is_stepped;
static const char *key = "s", *group = "g";
static Connection *connections;
static int poller;
static uint64_t deadline;

static Id *added, *taken;       /* by request number: the id answered; in the order of reading: the id read */
static unsigned char *is_taken;
static uint64_t added_count, taken_count, acked_count, added_limit, taken_limit;

/* Ending */

static void fail(const char *format, ...) {
    va_list rest;
    va_start(rest, format);
    fputs("load: ", stderr);
    vfprintf(stderr, format, rest);
    fputc('\n', stderr);
    va_end(rest);
    exit(1);
}

static void *allocate(size_t count, size_t size) {
    void *found = calloc(count ? count : 1, size);
    if (!found) fail("out of memory");
    return found;
}

static void refuse_reply(const Workload *workload, const char *at, const char *end) {
    const char *what = "a wrong reply";
    size_t size = (size_t)(end - at);
    if (*at == '-') what = "an error";
    else if ((size >= 3 && (*at == '*' || *at == '$') && at[1] == '-') || *at == '_') what = "a nil";
    fprintf(stderr, "load: %s to %s: ", what, workload->name);
    for (size_t i = 0; i < size && i < 300; i++) {
        if (at[i] == '\r') fputs("\\r", stderr);
        else if (at[i] == '\n') fputs("\\n", stderr);
        else fputc(at[i] >= 32 && at[i] < 127 ? at[i] : '?', stderr);
    }
    fputc('\n', stderr);
    exit(1);
}

static uint64_t now_ns(void) {
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return (uint64_t)time.tv_sec * 1000000000u + (uint64_t)time.tv_nsec;
}

/* Requests */

static char *put(char *at, const char *text, size_t size) {
    memcpy(at, text, size);
    return at + size;
}

static char *put_text(char *at, const char *text) { return put(at, text, strlen(text)); }

static char *put_decimal(char *at, uint64_t value) {
    char digits[20];
    int size = 0;
    do digits[size++] = (char)('0' + value % 10); while (value /= 10);
    while (size) *at++ = digits[--size];
    return at;
}

static char *put_bulk(char *at, const char *text, size_t size) {
    *at++ = '$';
    at = put_text(put_decimal(at, size), "\r\n");
    return put_text(put(at, text, size), "\r\n");
}

static char *put_word(char *at, const char *text) { return put_bulk(at, text, strlen(text)); }

static void fill_value(char *value, uint64_t number) {
    for (int i = NUMBER - 1; i >= 0; i--, number >>= 4) value[i] = "0123456789abcdef"[number & 15];
    memset(value + NUMBER, 'x', VALUE - NUMBER);
}

static size_t write_ping(char *at, Connection *connection, uint64_t number) {
    (void)connection, (void)number;
    return (size_t)(put_text(at, "*1\r\n$4\r\nPING\r\n") - at);
}

static size_t write_xadd(char *at, Connection *connection, uint64_t number) {
    (void)connection;
    char value[VALUE], *end = put_text(at, "*5\r\n$4\r\nXADD\r\n");
    fill_value(value, number);
    end = put_text(put_word(end, key), "$1\r\n*\r\n$1\r\nf\r\n");
    return (size_t)(put_bulk(end, value, VALUE) - at);
}

static size_t write_xreadgroup(char *at, Connection *connection, uint64_t number) {
    (void)number;
    char name[24], *end = put_text(at, "*9\r\n$10\r\nXREADGROUP\r\n$5\r\nGROUP\r\n");
    name[0] = 'c';
    end = put_bulk(put_word(end, group), name, (size_t)(put_decimal(name + 1, (uint64_t)connection->index) - name));
    end = put_text(end, "$5\r\nCOUNT\r\n$1\r\n1\r\n$7\r\nSTREAMS\r\n");
    return (size_t)(put_text(put_word(end, key), "$1\r\n>\r\n") - at);
}

static size_t write_xack(char *at, Connection *connection, uint64_t number) {
    (void)connection;
    char id[48], *end = put_text(at, "*4\r\n$4\r\nXACK\r\n");
    char *id_end = put_decimal(id, taken[number].ms);
    *id_end++ = '-';
    id_end = put_decimal(id_end, taken[number].seq);
    return (size_t)(put_bulk(put_word(put_word(end, key), group), id, (size_t)(id_end - id)) - at);
}

/* Replies: a cursor that goes on while all is well. `state`: 1 well, 0 not all there, -1 wrong. */

typedef struct { const char *at, *end; int state; } Cursor;

static void expect(Cursor *cursor, const char *text, size_t size) {
    if (cursor->state != 1) return;
    size_t there = (size_t)(cursor->end - cursor->at);
    if (memcmp(cursor->at, text, there < size ? there : size)) cursor->state = -1;
    else if (there < size) cursor->state = 0;
    else cursor->at += size;
}

static void expect_text(Cursor *cursor, const char *text) { expect(cursor, text, strlen(text)); }

static void expect_word(Cursor *cursor, const char *text) {
    char word[NAME + 32];
    expect(cursor, word, (size_t)(put_word(word, text) - word));
}

/* A decimal number as it is written shortest. */
static uint64_t number_here(Cursor *cursor) {
    uint64_t value = 0;
    const char *start = cursor->at;
    if (cursor->state != 1) return 0;
    while (cursor->at < cursor->end && *cursor->at >= '0' && *cursor->at <= '9') {
        unsigned digit = (unsigned)(*cursor->at++ - '0');
        if (value > (UINT64_MAX - digit) / 10) cursor->state = -1;
        value = value * 10 + digit;
    }
    if (cursor->at == cursor->end) cursor->state = cursor->state == 1 ? 0 : -1;
    else if (cursor->at == start || (*start == '0' && cursor->at > start + 1)) cursor->state = -1;
    return value;
}

static Id id_here(Cursor *cursor) {
    Id id = {0, 0};
    expect_text(cursor, "$");
    uint64_t size = number_here(cursor);
    expect_text(cursor, "\r\n");
    const char *start = cursor->at;
    id.ms = number_here(cursor);
    expect_text(cursor, "-");
    id.seq = number_here(cursor);
    if (cursor->state == 1 && (uint64_t)(cursor->at - start) != size) cursor->state = -1;
    expect_text(cursor, "\r\n");
    return id;
}

static bool is_larger(Id one, Id other) { return one.ms != other.ms ? one.ms > other.ms : one.seq > other.seq; }

static int result(const Cursor *cursor, const char *start) {
    return cursor->state == 1 ? (int)(cursor->at - start) : cursor->state;
}

static int check_ping(const char *at, const char *end, Connection *connection, uint64_t number) {
    (void)connection, (void)number;
    Cursor cursor = {at, end, 1};
    expect_text(&cursor, "+PONG\r\n");
    return result(&cursor, at);
}

static int check_xadd(const char *at, const char *end, Connection *connection, uint64_t number) {
    Cursor cursor = {at, end, 1};
    Id id = id_here(&cursor);
    if (cursor.state == 1) {
        if (!is_larger(id, connection->last)) return -1;
        added[number] = connection->last = id;
    }
    return result(&cursor, at);
}

/* The number that a value begins with; wrong unless the rest is as we wrote it. */
static uint64_t value_here(Cursor *cursor) {
    char wanted[VALUE];
    uint64_t number = 0;
    expect_text(cursor, "$100\r\n");
    if (cursor->state != 1) return 0;
    if (cursor->end - cursor->at < NUMBER) cursor->state = 0;
    for (int i = 0; i < NUMBER && cursor->state == 1; i++) {
        char digit = cursor->at[i];
        if (digit >= '0' && digit <= '9') number = number << 4 | (uint64_t)(digit - '0');
        else if (digit >= 'a' && digit <= 'f') number = number << 4 | (uint64_t)(digit - 'a' + 10);
        else cursor->state = -1;
    }
    fill_value(wanted, number);
    expect(cursor, wanted, VALUE);
    expect_text(cursor, "\r\n");
    return number;
}

static int check_xreadgroup(const char *at, const char *end, Connection *connection, uint64_t number) {
    (void)connection, (void)number;
    Cursor cursor = {at, end, 1};
    expect_text(&cursor, "*1\r\n*2\r\n");
    expect_word(&cursor, key);
    expect_text(&cursor, "*1\r\n*2\r\n");
    Id id = id_here(&cursor);
    expect_text(&cursor, "*2\r\n$1\r\nf\r\n");
    uint64_t entry = value_here(&cursor);
    if (cursor.state == 1) {
        if (entry >= added_count || is_taken[entry]) return -1;
        if (added[entry].ms != id.ms || added[entry].seq != id.seq) return -1;
        is_taken[entry] = 1;
        taken[taken_count++] = id;
    }
    return result(&cursor, at);
}

static int check_xack(const char *at, const char *end, Connection *connection, uint64_t number) {
    (void)connection, (void)number;
    Cursor cursor = {at, end, 1};
    expect_text(&cursor, ":1\r\n");
    return result(&cursor, at);
}

static const Workload workloads[] = {
    {"ping", write_ping, check_ping},
    {"xadd", write_xadd, check_xadd},
    {"xreadgroup", write_xreadgroup, check_xreadgroup},
    {"xack", write_xack, check_xack},
};

/* Connections */

static size_t in_limit(void) { return (size_t)depth * REPLY + REPLY; }

static void watch(Connection *connection, int operation, bool wants_out) {
    struct epoll_event event = {.events = EPOLLIN | (wants_out ? EPOLLOUT : 0u), .data.ptr = connection};
    if (epoll_ctl(poller, operation, connection->fd, &event)) fail("epoll: %s", strerror(errno));
    connection->wants_out = wants_out;
}

/* Connect, and ask once, so that the server has accepted before anything is timed. */
static void greet(Connection *connection) {
    char reply[7];
    size_t size = 0;
    struct timeval patience = {.tv_sec = limit_s};
    setsockopt(connection->fd, SOL_SOCKET, SO_RCVTIMEO, &patience, sizeof patience);
    if (write(connection->fd, "*1\r\n$4\r\nPING\r\n", 14) != 14) fail("cannot write: %s", strerror(errno));
    while (size < sizeof reply) {
        ssize_t got = read(connection->fd, reply + size, sizeof reply - size);
        if (got < 0) fail("cannot read: %s", strerror(errno));
        if (got == 0) fail("the server closed a connection");
        size += (size_t)got;
    }
    if (memcmp(reply, "+PONG\r\n", sizeof reply)) refuse_reply(&workloads[0], reply, reply + sizeof reply);
}

static void open_connection(Connection *connection, int index) {
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_port = htons((uint16_t)port)};
    int yes = 1;
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    connection->index = index;
    connection->fd = socket(AF_INET, SOCK_STREAM, 0);
    if (connection->fd < 0) fail("cannot open a socket: %s", strerror(errno));
    if (connect(connection->fd, (struct sockaddr *)&address, sizeof address))
        fail("cannot connect to port %d: %s", port, strerror(errno));
    setsockopt(connection->fd, IPPROTO_TCP, TCP_NODELAY, &yes, sizeof yes);
    greet(connection);
    fcntl(connection->fd, F_SETFL, fcntl(connection->fd, F_GETFL) | O_NONBLOCK);
    connection->out = allocate((size_t)depth, REQUEST);
    connection->in = allocate(1, in_limit());
    connection->numbers = allocate((size_t)depth, sizeof *connection->numbers);
    watch(connection, EPOLL_CTL_ADD, false);
}

static void send_rest(Connection *connection) {
    while (connection->out_sent < connection->out_size) {
        ssize_t done = write(connection->fd, connection->out + connection->out_sent,
                             connection->out_size - connection->out_sent);
        if (done < 0 && errno == EINTR) continue;
        if (done < 0 && errno == EAGAIN) break;
        if (done < 0) fail("cannot write: %s", strerror(errno));
        connection->out_sent += (size_t)done;
    }
    bool wants_out = connection->out_sent < connection->out_size;
    if (wants_out != connection->wants_out) watch(connection, EPOLL_CTL_MOD, wants_out);
}

/* One workload */

typedef struct {
    const Workload *workload;
    uint64_t first, count;      /* numbers of its requests: first, first + 1, ... */
    uint64_t sent, answered;
    double *latencies_us;
} Phase;

static void send_batch(Connection *connection, Phase *phase) {
    uint64_t left = phase->count - phase->sent;
    int size = left < (uint64_t)depth ? (int)left : depth;
    connection->out_size = connection->out_sent = 0;
    connection->outstanding = size;
    connection->answered = 0;
    if (!size) return;
    for (int i = 0; i < size; i++) {
        connection->numbers[i] = phase->first + phase->sent++;
        connection->out_size += phase->workload->write(connection->out + connection->out_size, connection,
                                                       connection->numbers[i]);
    }
    connection->sent_at = now_ns();
    send_rest(connection);
}

static void take_replies(Connection *connection, Phase *phase) {
    const char *at = connection->in, *end = connection->in + connection->in_size;
    uint64_t now = now_ns();
    while (at < end) {
        if (!connection->outstanding) fail("more replies than requests to %s", phase->workload->name);
        int size = phase->workload->check(at, end, connection, connection->numbers[connection->answered]);
        if (size < 0) refuse_reply(phase->workload, at, end);
        if (!size) break;
        at += size;
        connection->answered++;
        connection->outstanding--;
        phase->latencies_us[phase->answered++] = (double)(now - connection->sent_at) / 1e3;
    }
    connection->in_size = (size_t)(end - at);
    if (connection->in_size >= REPLY) refuse_reply(phase->workload, at, end);
    memmove(connection->in, at, connection->in_size);
    if (!connection->outstanding) send_batch(connection, phase);
}

static void receive(Connection *connection, Phase *phase) {
    ssize_t got = read(connection->fd, connection->in + connection->in_size, in_limit() - connection->in_size);
    if (got == 0) fail("the server closed a connection during %s", phase->workload->name);
    if (got < 0 && (errno == EAGAIN || errno == EINTR)) return;
    if (got < 0) fail("cannot read: %s", strerror(errno));
    connection->in_size += (size_t)got;
    take_replies(connection, phase);
}

static void drive(Phase *phase) {
    struct epoll_event events[512];
    while (phase->answered < phase->count) {
        int ready = epoll_wait(poller, events, 512, 100);
        if (ready < 0 && errno != EINTR) fail("epoll: %s", strerror(errno));
        for (int i = 0; i < ready; i++) {
            Connection *connection = events[i].data.ptr;
            if (events[i].events & EPOLLOUT) send_rest(connection);
            if (events[i].events & ~(uint32_t)EPOLLOUT) receive(connection, phase);
        }
        if (now_ns() > deadline)
            fail("%s: %llu of %llu requests answered when time was up", phase->workload->name,
                 (unsigned long long)phase->answered, (unsigned long long)phase->count);
    }
}

static void expect_silence(const Workload *workload) {
    char byte;
    for (int i = 0; i < connection_count; i++)
        if (recv(connections[i].fd, &byte, 1, MSG_PEEK | MSG_DONTWAIT) == 1)
            fail("more replies than requests to %s", workload->name);
}

static int by_id(const void *one, const void *other) {
    const Id *a = one, *b = other;
    return is_larger(*a, *b) - is_larger(*b, *a);
}

static void expect_no_id_twice(uint64_t first, uint64_t count) {
    Id *sorted = allocate(count, sizeof *sorted);
    memcpy(sorted, added + first, count * sizeof *sorted);
    qsort(sorted, count, sizeof *sorted, by_id);
    for (uint64_t i = 1; i < count; i++)
        if (!by_id(&sorted[i - 1], &sorted[i])) fail("xadd answered an id twice");
    free(sorted);
}

static int by_size(const void *one, const void *other) {
    double a = *(const double *)one, b = *(const double *)other;
    return (a > b) - (a < b);
}

static void report(Phase *phase, double seconds) {
    uint64_t count = phase->count;
    double *sorted = phase->latencies_us;
    qsort(sorted, count, sizeof *sorted, by_size);
    printf("{\"workload\": \"%s\", \"requests\": %llu, \"seconds\": %.6f, \"per_second\": %.1f, "
           "\"p50_us\": %.1f, \"p99_us\": %.1f, \"max_us\": %.1f}\n",
           phase->workload->name, (unsigned long long)count, seconds, (double)count / seconds,
           sorted[(count - 1) / 2], sorted[(count - 1) * 99 / 100], sorted[count - 1]);
    fflush(stdout);
}

static void run(const Workload *workload, uint64_t first, uint64_t count) {
    Phase phase = {.workload = workload, .first = first, .count = count};
    phase.latencies_us = allocate(count, sizeof *phase.latencies_us);
    memset(phase.latencies_us, 0xff, count * sizeof *phase.latencies_us);
    uint64_t start = now_ns();
    for (int i = 0; i < connection_count; i++) send_batch(&connections[i], &phase);
    drive(&phase);
    double seconds = (double)(now_ns() - start) / 1e9;
    expect_silence(workload);
    if (workload->check == check_xadd) expect_no_id_twice(first, count);
    report(&phase, seconds);
    free(phase.latencies_us);
}

/* The command line */

static void usage(const char *problem) {
    fprintf(stderr, "load: %s\nusage: load -p PORT [-c CONNECTIONS] [-d DEPTH] [-t SECONDS] [-k KEY] [-g GROUP] [-w] "
                    "ping|xadd|xreadgroup|xack=REQUESTS...\n", problem);
    exit(2);
}

static long number_of(const char *text, long most) {
    char *end;
    errno = 0;
    long value = strtol(text, &end, 10);
    if (errno || *end || end == text || value < 1 || value > most) usage("a number is wrong");
    return value;
}

static void await_line(void) {
    int read;
    do read = getchar(); while (read != '\n' && read != EOF);
    if (read == EOF) fail("nobody says to go on");
}

static const char *name_of(const char *text) {
    if (!*text || strlen(text) > NAME) usage("a name is empty or too long");
    return text;
}

static const Workload *workload_of(const char *word, uint64_t *count) {
    const char *equals = strchr(word, '=');
    if (!equals) usage("a workload is written NAME=REQUESTS");
    *count = (uint64_t)number_of(equals + 1, 100000000);
    for (size_t i = 0; i < sizeof workloads / sizeof *workloads; i++)
        if (strlen(workloads[i].name) == (size_t)(equals - word) && !strncmp(word, workloads[i].name, equals - word))
            return &workloads[i];
    usage("no such workload");
    return NULL;
}

static void read_options(int argc, char **argv) {
    int option;
    while ((option = getopt(argc, argv, "p:c:d:t:k:g:w")) != -1) {
        if (option == 'p') port = (int)number_of(optarg, 65535);
        else if (option == 'c') connection_count = (int)number_of(optarg, 20000);
        else if (option == 'd') depth = (int)number_of(optarg, 1000);
        else if (option == 't') limit_s = (int)number_of(optarg, 3600);
        else if (option == 'k') key = name_of(optarg);
        else if (option == 'g') group = name_of(optarg);
        else if (option == 'w') is_stepped = true;
        else usage("an option is wrong");
    }
    if (!port) usage("which port?");
    if (optind == argc) usage("which workload?");
}

/* What is read must have been appended here, what is acknowledged must have been read here. */
static void plan(int argc, char **argv) {
    uint64_t count, acked = 0;
    for (int i = optind; i < argc; i++) {
        const Workload *workload = workload_of(argv[i], &count);
        if (workload->check == check_xadd) added_limit += count;
        else if (workload->check == check_xreadgroup) taken_limit += count;
        else if (workload->check == check_xack) acked += count;
        if (taken_limit > added_limit) usage("xreadgroup wants as many xadd before it");
        if (acked > taken_limit) usage("xack wants as many xreadgroup before it");
    }
    added = allocate(added_limit, sizeof *added);
    is_taken = allocate(added_limit, 1);
    taken = allocate(taken_limit, sizeof *taken);
    memset(added, 0xff, added_limit * sizeof *added); /* its pages are there before a clock runs */
    memset(taken, 0xff, taken_limit * sizeof *taken);
}

int main(int argc, char **argv) {
    read_options(argc, argv);
    plan(argc, argv);
    deadline = now_ns() + (uint64_t)limit_s * 1000000000u;
    poller = epoll_create1(0);
    connections = allocate((size_t)connection_count, sizeof *connections);
    for (int i = 0; i < connection_count; i++) open_connection(&connections[i], i);
    for (int i = optind; i < argc; i++) {
        uint64_t count;
        const Workload *workload = workload_of(argv[i], &count);
        uint64_t first = workload->check == check_xadd ? added_count : workload->check == check_xack ? acked_count : 0;
        if (is_stepped) await_line();
        run(workload, first, count);
        if (workload->check == check_xadd) added_count += count;
        else if (workload->check == check_xack) acked_count += count;
    }
    return 0;
}
