/* The least that a barrier of two cores can take: two threads, a flag each on a line of its own. No MPI is in the time. */
#define _GNU_SOURCE
#include "osu.h"
#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdio.h>

enum { ROUNDS = 100000, WARM_UP = 10000 };

static _Alignas(128) atomic_uint flags[2][32];

static void run_on(int core)
{
    cpu_set_t cores;
    CPU_ZERO(&cores);
    CPU_SET(core, &cores);
    /* Without the right to choose a core the scheduler chooses. */
    pthread_setaffinity_np(pthread_self(), sizeof cores, &cores);
}

static void rounds(int own, unsigned first, unsigned count)
{
    for (unsigned round = first; round < first + count; round++) {
        atomic_store_explicit(&flags[own][0], round, memory_order_release);
        while (atomic_load_explicit(&flags[1 - own][0], memory_order_acquire) < round)
            ;
    }
}

static void *other(void *unused)
{
    run_on(1);
    rounds(1, 1, WARM_UP + ROUNDS);
    return unused;
}

int floor_of_two_flags(void)
{
    pthread_t thread;
    if (rank != 0)
        return 0;
    if (pthread_create(&thread, NULL, other, NULL) != 0)
        return 1;
    run_on(0);
    rounds(0, 1, WARM_UP);
    double start = MPI_Wtime();
    rounds(0, WARM_UP + 1, ROUNDS);
    double us = (MPI_Wtime() - start) * 1e6 / ROUNDS;
    pthread_join(thread, NULL);
    printf("# Floor: barrier of two threads by two flags\n%-10d%20.3f\n", 0, us);
    return 0;
}
