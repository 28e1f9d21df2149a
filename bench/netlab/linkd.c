/* The wires of the emulated network: rate, delay and fair sharing between network namespaces, no loss.
 *
 * Every host is a namespace with one TUN device. What host i sends to host j is read here and passes
 * three servers, in virtual time, before it is written to j's device:
 *
 *     egress NIC of i  ->  directed pair i -> j (rate, then delay)  ->  ingress NIC of j
 *
 * Packets are cut through: on an idle path B bytes take B / (slowest rate) + delay. A NIC serves its
 * pairs in turn. Steps are carried out at the time at which they were due, however late this process
 * wakes up, so a late wake-up loses no bandwidth. The TUN devices take segments of up to 64 KB (TSO),
 * which keeps this cheap; bytes on the wire are counted as if they had been cut at the MTU, with 38 bytes
 * of Ethernet framing each. A bare TCP acknowledgement waits for nothing but the delay: on a real full-duplex
 * link it would slip between data packets.
 *
 *     linkd CONFIG      SIGHUP reads CONFIG again; SIGUSR1 prints counters; SIGTERM ends
 *
 * CONFIG:   mtu BYTES | host I NAMESPACE EGRESS INGRESS | pair I J RATE DELAY     bit/s (0: no limit), ns
 */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <linux/if.h>
#include <linux/if_tun.h>
#include <linux/virtio_net.h>
#include <poll.h>
#include <sched.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <time.h>
#include <unistd.h>

enum { MOST_HOSTS = 32, LARGEST_READ = 1 << 16 | 1 << 10, FRAMING = 38, READS_PER_VISIT = 16 };
static const uint64_t NEVER = UINT64_MAX, SPIN_NS = 30000, MOST_QUEUED = 64u << 20;

typedef struct Packet {
    struct Packet *next;
    uint64_t ready_ns; /* may begin its next step from here on */
    uint64_t end_ns;   /* its last byte has passed the pair */
    double wire_bytes;
    size_t length; /* of data: virtio header and IP packet */
    char data[];
} Packet;

typedef struct {
    Packet *first, *last;
} Queue;

typedef struct {
    char namespace[64];
    double egress, ingress;             /* bit/s */
    uint64_t egress_free, ingress_free; /* ns */
    int last_to, last_from;             /* whom the NIC served last */
    int device;
} Host;

typedef struct {
    double rate;
    uint64_t delay_ns, free_ns;
    size_t queued; /* bytes */
    Queue at_egress, at_ingress, leaving, acks;
} Pair;

static Host hosts[MOST_HOSTS];
static Pair pairs[MOST_HOSTS][MOST_HOSTS];
static int num_hosts, mtu = 1500;
static uint64_t packets, wire_bytes, dropped, refused;
static volatile sig_atomic_t reload = 0, tell = 0, stop = 0;

static void on_signal(int number) {
    if (number == SIGHUP) reload = 1;
    else if (number == SIGUSR1) tell = 1;
    else stop = 1;
}

static uint64_t now_ns(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

static void append(Queue *queue, Packet *packet) {
    packet->next = NULL;
    if (queue->first) queue->last->next = packet;
    else queue->first = packet;
    queue->last = packet;
}

static Packet *take(Queue *queue) {
    Packet *packet = queue->first;
    queue->first = packet->next;
    return packet;
}

static void fail(const char *what) {
    perror(what);
    exit(1);
}

static void read_config(const char *path) {
    FILE *file = fopen(path, "r");
    if (!file) fail(path);
    char line[256], name[64];
    while (fgets(line, sizeof line, file)) {
        int i, j;
        double a, b;
        if (sscanf(line, "mtu %d", &mtu) == 1) continue;
        if (sscanf(line, "host %d %63s %lf %lf", &i, name, &a, &b) == 4 && i >= 0 && i < MOST_HOSTS) {
            strcpy(hosts[i].namespace, name);
            hosts[i].egress = a;
            hosts[i].ingress = b;
            if (i >= num_hosts) num_hosts = i + 1;
        } else if (sscanf(line, "pair %d %d %lf %lf", &i, &j, &a, &b) == 4 && i >= 0 && j >= 0 && i < MOST_HOSTS &&
                   j < MOST_HOSTS) {
            pairs[i][j].rate = a;
            pairs[i][j].delay_ns = (uint64_t)b;
        } else {
            fprintf(stderr, "linkd: not understood: %s", line);
        }
    }
    fclose(file);
}

/* The TUN device nl0 in a namespace: its descriptor works from outside. */
static int open_device(const char *namespace) {
    char path[128];
    snprintf(path, sizeof path, "/run/netns/%s", namespace);
    const int home = open("/proc/self/ns/net", O_RDONLY), there = open(path, O_RDONLY);
    if (there < 0 || setns(there, CLONE_NEWNET)) fail(path);
    const int device = open("/dev/net/tun", O_RDWR | O_NONBLOCK | O_CLOEXEC);
    if (device < 0) fail("/dev/net/tun");
    struct ifreq request;
    memset(&request, 0, sizeof request);
    strcpy(request.ifr_name, "nl0");
    request.ifr_flags = IFF_TUN | IFF_NO_PI | IFF_VNET_HDR;
    int header = sizeof(struct virtio_net_hdr);
    if (ioctl(device, TUNSETIFF, &request) || ioctl(device, TUNSETVNETHDRSZ, &header) ||
        ioctl(device, TUNSETOFFLOAD, TUN_F_CSUM | TUN_F_TSO4))
        fail("TUN device");
    if (setns(home, CLONE_NEWNET)) fail("setns");
    close(home);
    close(there);
    return device;
}

static uint64_t serial_ns(double bytes, double rate) { return rate > 0 ? (uint64_t)(bytes * 8e9 / rate) : 0; }
static uint64_t later(uint64_t a, uint64_t b) { return a > b ? a : b; }

/* Take what host i has sent; returns how many packets. */
static int take_in(int i) {
    static char buffer[LARGEST_READ];
    int taken = 0;
    ssize_t got;
    while (taken < READS_PER_VISIT && (got = read(hosts[i].device, buffer, sizeof buffer)) > 0) {
        ++taken;
        const struct virtio_net_hdr *offload = (const void *)buffer;
        const unsigned char *ip = (const unsigned char *)buffer + sizeof *offload;
        const int length = (int)got - (int)sizeof *offload;
        if (length < 20 || ip[0] >> 4 != 4 || ip[16] != 10 || ip[17] != 99 || ip[18] != 0) continue;
        const int j = ip[19] - 1;
        if (j < 0 || j >= num_hosts || j == i) continue;
        Pair *pair = &pairs[i][j];
        if (pair->queued + (size_t)got > MOST_QUEUED) {
            ++dropped;
            continue;
        }
        const int ip_header = (ip[0] & 15) * 4, is_tcp = ip[9] == 6 && length >= ip_header + 20;
        const int headers = ip_header + (is_tcp ? (ip[ip_header + 12] >> 4) * 4 : 8);
        int segments = 1;
        if (offload->gso_type != VIRTIO_NET_HDR_GSO_NONE && offload->gso_size)
            segments = (length - headers + offload->gso_size - 1) / offload->gso_size;
        if (segments < 1) segments = 1;
        Packet *packet = malloc(sizeof *packet + (size_t)got);
        if (!packet) fail("malloc");
        packet->wire_bytes = length + (segments - 1.0) * headers + (double)segments * FRAMING;
        packet->length = (size_t)got;
        packet->ready_ns = now_ns();
        memcpy(packet->data, buffer, (size_t)got);
        if (is_tcp && length == headers) {
            packet->ready_ns += pair->delay_ns;
            append(&pair->acks, packet);
        } else {
            append(&pair->at_egress, packet);
        }
        pair->queued += (size_t)got;
        ++packets;
        wire_bytes += (uint64_t)packet->wire_bytes;
    }
    return taken;
}

/* Carry out the egress steps of host i due by `now`; returns when the next is due. */
static uint64_t serve_egress(int i, uint64_t now) {
    Host *host = &hosts[i];
    for (;;) {
        int chosen = -1;
        uint64_t start = NEVER;
        for (int k = 1; k <= num_hosts; ++k) {
            const int j = (host->last_to + k) % num_hosts;
            const Packet *head = pairs[i][j].at_egress.first;
            if (!head) continue;
            const uint64_t could = later(head->ready_ns, later(host->egress_free, pairs[i][j].free_ns));
            if (could < start) start = could, chosen = j;
        }
        if (chosen < 0 || start > now) return start;
        Pair *pair = &pairs[i][chosen];
        Packet *packet = take(&pair->at_egress);
        host->last_to = chosen;
        host->egress_free = start + serial_ns(packet->wire_bytes, host->egress);
        pair->free_ns = start + serial_ns(packet->wire_bytes, pair->rate);
        packet->ready_ns = start + pair->delay_ns;
        packet->end_ns = later(host->egress_free, pair->free_ns) + pair->delay_ns;
        append(&pair->at_ingress, packet);
    }
}

/* The same at the ingress of host j. */
static uint64_t serve_ingress(int j, uint64_t now) {
    Host *host = &hosts[j];
    for (;;) {
        int chosen = -1;
        uint64_t start = NEVER;
        for (int k = 1; k <= num_hosts; ++k) {
            const int i = (host->last_from + k) % num_hosts;
            const Packet *head = pairs[i][j].at_ingress.first;
            if (!head) continue;
            const uint64_t could = later(head->ready_ns, host->ingress_free);
            if (could < start) start = could, chosen = i;
        }
        if (chosen < 0 || start > now) return start;
        Packet *packet = take(&pairs[chosen][j].at_ingress);
        host->last_from = chosen;
        host->ingress_free = start + serial_ns(packet->wire_bytes, host->ingress);
        packet->ready_ns = later(host->ingress_free, packet->end_ns);
        append(&pairs[chosen][j].leaving, packet);
    }
}

/* Write what has arrived by `now` to host j; returns when the next is due. */
static uint64_t deliver(Queue *queue, Pair *pair, int j, uint64_t now) {
    while (queue->first && queue->first->ready_ns <= now) {
        const ssize_t wrote = write(hosts[j].device, queue->first->data, queue->first->length);
        if (wrote < 0 && errno == EAGAIN) return now + 10000;
        if (wrote < 0) ++refused;
        Packet *packet = take(queue);
        pair->queued -= packet->length;
        free(packet);
    }
    return queue->first ? queue->first->ready_ns : NEVER;
}

static uint64_t sooner(uint64_t a, uint64_t b) { return a < b ? a : b; }

static uint64_t serve(uint64_t now) {
    uint64_t next = NEVER;
    for (int i = 0; i < num_hosts; ++i) next = sooner(next, serve_egress(i, now));
    for (int j = 0; j < num_hosts; ++j) next = sooner(next, serve_ingress(j, now));
    for (int i = 0; i < num_hosts; ++i)
        for (int j = 0; j < num_hosts; ++j) {
            next = sooner(next, deliver(&pairs[i][j].leaving, &pairs[i][j], j, now));
            next = sooner(next, deliver(&pairs[i][j].acks, &pairs[i][j], j, now));
        }
    return next;
}

static void print_counters(void) {
    fprintf(stderr, "packets %llu, wire bytes %llu, dropped %llu, refused %llu\n", (unsigned long long)packets,
            (unsigned long long)wire_bytes, (unsigned long long)dropped, (unsigned long long)refused);
}

int main(int count, char **arguments) {
    if (count != 2) return fputs("usage: linkd CONFIG\n", stderr), 2;
    struct sigaction action;
    memset(&action, 0, sizeof action);
    action.sa_handler = on_signal;
    const int signals[] = {SIGHUP, SIGUSR1, SIGTERM, SIGINT};
    for (size_t k = 0; k < sizeof signals / sizeof *signals; ++k) sigaction(signals[k], &action, NULL);
    read_config(arguments[1]);
    struct pollfd polled[MOST_HOSTS];
    for (int i = 0; i < num_hosts; ++i) {
        hosts[i].device = open_device(hosts[i].namespace);
        polled[i] = (struct pollfd){.fd = hosts[i].device, .events = POLLIN};
    }
    prctl(PR_SET_TIMERSLACK, 1);
    const struct sched_param priority = {.sched_priority = 10};
    if (sched_setscheduler(0, SCHED_FIFO, &priority)) perror("linkd: no real-time priority, timing is worse");
    mlockall(MCL_CURRENT | MCL_FUTURE);
    puts("ready");
    fflush(stdout);
    while (!stop) {
        if (reload) reload = 0, read_config(arguments[1]);
        if (tell) tell = 0, print_counters();
        int taken = 0;
        for (int i = 0; i < num_hosts; ++i) taken += take_in(i);
        const uint64_t next = serve(now_ns());
        if (taken) continue;
        const uint64_t now = now_ns();
        if (next != NEVER && next <= now + SPIN_NS) continue; /* short waits spin */
        const uint64_t wait = next == NEVER ? 1000000000u : next - now - SPIN_NS;
        const struct timespec nap = {.tv_sec = (time_t)(wait / 1000000000u), .tv_nsec = (long)(wait % 1000000000u)};
        ppoll(polled, (nfds_t)num_hosts, &nap, NULL);
    }
    print_counters();
    return 0;
}
