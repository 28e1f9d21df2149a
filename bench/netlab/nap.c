/* Preloaded into ranks: where Open MPI yields while it waits (mpi_yield_when_idle), nap instead.
 *
 * With more ranks than cores, ranks that spin on sched_yield() keep the cores from those that compute and
 * from the emulated wires. NETLAB_NAP_US: microseconds a nap takes (20).
 */
#define _GNU_SOURCE
#include <stdlib.h>
#include <sys/prctl.h>
#include <time.h>

int sched_yield(void) {
    static long nap_ns = -1;
    static __thread int prepared = 0;
    if (nap_ns < 0) {
        const char *asked = getenv("NETLAB_NAP_US");
        nap_ns = 1000 * (asked ? atol(asked) : 20);
    }
    if (!prepared) {
        prctl(PR_SET_TIMERSLACK, 1000);
        prepared = 1;
    }
    const struct timespec nap = {0, nap_ns};
    if (nap_ns > 0) nanosleep(&nap, NULL);
    return 0;
}
