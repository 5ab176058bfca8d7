/* Prints the rate of this processor's time stamp counter in kHz: what an emulated processor counts by (cpu_get_host_ticks in
 * QEMU). A busy machine makes it no less exact: of several readings, the one that took least time counts. */
#include <stdio.h>
#include <time.h>
#include <x86intrin.h>

struct reading { unsigned long long ticks; double seconds; };

static struct reading read_both(void)
{
    struct reading best = { 0, 0 };
    unsigned long long least = ~0ULL;
    for (int i = 0; i < 100; i++) {
        struct timespec t;
        unsigned long long before = __rdtsc();
        clock_gettime(CLOCK_MONOTONIC_RAW, &t);
        unsigned long long took = __rdtsc() - before;
        if (took < least) {
            least = took;
            best.ticks = before + took / 2;
            best.seconds = (double)t.tv_sec + (double)t.tv_nsec / 1e9;
        }
    }
    return best;
}

int main(void)
{
    struct reading first = read_both();
    struct timespec pause = { 0, 200000000 };
    nanosleep(&pause, NULL);
    struct reading last = read_both();
    printf("%.0f\n", (double)(last.ticks - first.ticks) / (last.seconds - first.seconds) / 1e3);
    return 0;
}
