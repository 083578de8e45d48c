/* Collective operations of all ranks: the mean of a call at each rank, with a barrier outside of the time between two calls. */
#include "osu.h"
#include <stdlib.h>
#include <string.h>

/* What one benchmark does: its buffers, its call, and whether the result is right. */
struct operation {
    const char *title;
    size_t element;   /* bytes of an element: the smallest size */
    size_t per_rank;  /* buffers have this many times the size: 1, or the number of ranks */
    void (*fill)(char *from, char *into, size_t bytes);
    void (*call)(char *from, char *into, size_t bytes);
    int (*check)(const char *into, size_t bytes);
};

static int measure(const struct operation *operation)
{
    size_t room = options.largest * operation->per_rank;
    char *from = allocate(room), *into = allocate(room);
    size_t smallest = options.smallest < operation->element ? operation->element : options.smallest;
    head(operation->title, "Avg Latency(us)");
    for (size_t bytes = smallest; bytes <= options.largest; bytes *= 2) {
        struct repetitions times = repetitions(bytes, 1000, 200, 100, 10);
        double total = 0;
        operation->fill(from, into, bytes);
        MPI_Barrier(MPI_COMM_WORLD);
        for (int i = 0; i < times.skipped + times.timed; i++) {
            double start = MPI_Wtime();
            operation->call(from, into, bytes);
            double end = MPI_Wtime();
            if (i >= times.skipped)
                total += end - start;
            MPI_Barrier(MPI_COMM_WORLD);
        }
        collective_line(bytes, total * 1e6 / times.timed, times.timed, operation->check(into, bytes));
    }
    free(from);
    free(into);
    return 0;
}

int barrier(void)
{
    struct repetitions times = repetitions(0, 1000, 200, 1000, 200);
    double start = 0;
    head("barrier", "Avg Latency(us)");
    for (int i = 0; i < times.skipped + times.timed; i++) {
        if (i == times.skipped)
            start = MPI_Wtime();
        MPI_Barrier(MPI_COMM_WORLD);
    }
    collective_line(0, (MPI_Wtime() - start) * 1e6 / times.timed, times.timed, 1);
    return 0;
}

static void fill_broadcast(char *from, char *into, size_t bytes)
{
    (void)from;
    memset(into, rank == 0 ? 'b' : 0, bytes);
}

static void call_broadcast(char *from, char *into, size_t bytes)
{
    (void)from;
    MPI_Bcast(into, (int)bytes, MPI_CHAR, 0, MPI_COMM_WORLD);
}

static int check_broadcast(const char *into, size_t bytes)
{
    return holds(into, bytes, 'b');
}

int broadcast(void)
{
    return measure(&(struct operation){ "broadcast", 1, 1, fill_broadcast, call_broadcast, check_broadcast });
}

static void fill_floats(char *from, char *into, size_t bytes)
{
    float *numbers = (float *)from;
    for (size_t i = 0; i < bytes / sizeof(float); i++)
        numbers[i] = (float)(rank + 1);
    memset(into, 0, bytes);
}

static int check_sum(const char *into, size_t bytes)
{
    return holds_float((const float *)into, bytes / sizeof(float), (float)(ranks * (ranks + 1) / 2));
}

static int check_sum_at_root(const char *into, size_t bytes)
{
    return rank != 0 || check_sum(into, bytes);
}

static void call_reduce(char *from, char *into, size_t bytes)
{
    MPI_Reduce(from, into, (int)(bytes / sizeof(float)), MPI_FLOAT, MPI_SUM, 0, MPI_COMM_WORLD);
}

int reduce(void)
{
    return measure(&(struct operation){ "reduce", sizeof(float), 1, fill_floats, call_reduce, check_sum_at_root });
}

static void call_allreduce(char *from, char *into, size_t bytes)
{
    MPI_Allreduce(from, into, (int)(bytes / sizeof(float)), MPI_FLOAT, MPI_SUM, MPI_COMM_WORLD);
}

int allreduce(void)
{
    return measure(&(struct operation){ "allreduce", sizeof(float), 1, fill_floats, call_allreduce, check_sum });
}

static void fill_parts(char *from, char *into, size_t bytes)
{
    memset(from, 'a' + rank % 26, bytes * ranks);
    memset(into, 0, bytes * ranks);
}

static int check_parts(const char *into, size_t bytes)
{
    for (int other = 0; other < ranks; other++)
        if (!holds(into + bytes * other, bytes, (char)('a' + other % 26)))
            return 0;
    return 1;
}

static void call_allgather(char *from, char *into, size_t bytes)
{
    MPI_Allgather(from, (int)bytes, MPI_CHAR, into, (int)bytes, MPI_CHAR, MPI_COMM_WORLD);
}

int allgather(void)
{
    return measure(&(struct operation){ "allgather", 1, ranks, fill_parts, call_allgather, check_parts });
}

static void call_alltoall(char *from, char *into, size_t bytes)
{
    MPI_Alltoall(from, (int)bytes, MPI_CHAR, into, (int)bytes, MPI_CHAR, MPI_COMM_WORLD);
}

int alltoall(void)
{
    return measure(&(struct operation){ "alltoall", 1, ranks, fill_parts, call_alltoall, check_parts });
}
