/* Benchmarks of MPI with the definitions of the OSU suite, written anew: the first argument names one. */
#define _GNU_SOURCE
#include "osu.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct options options = { .smallest = 1, .largest = 1 << 20 };
int rank, ranks;

struct repetitions repetitions(size_t bytes, int small, int small_skipped, int large, int large_skipped)
{
    struct repetitions found = { small, small_skipped };
    if (bytes > 8192) {
        found.timed = large;
        found.skipped = large_skipped;
    }
    if (options.iterations > 0)
        found.timed = options.iterations;
    if (options.skipped > 0)
        found.skipped = options.skipped;
    return found;
}

void *allocate(size_t bytes)
{
    void *memory = NULL;
    if (posix_memalign(&memory, 4096, bytes ? bytes : 1) != 0) {
        fprintf(stderr, "rank %d has no memory for %zu bytes\n", rank, bytes);
        MPI_Abort(MPI_COMM_WORLD, 1);
    }
    memset(memory, 0, bytes);
    return memory;
}

void head(const char *title, const char *column)
{
    if (rank == 0) {
        printf("# OSU-like MPI %s\n%-10s%20s", title, "# Size", column);
        if (options.full)
            printf("%20s%20s%12s", "Min Latency(us)", "Max Latency(us)", "Iterations");
        printf("\n");
        fflush(stdout);
    }
}

void collective_line(size_t bytes, double own_us, int timed, int is_valid)
{
    double least, most, sum;
    int all_valid;
    MPI_Reduce(&own_us, &least, 1, MPI_DOUBLE, MPI_MIN, 0, MPI_COMM_WORLD);
    MPI_Reduce(&own_us, &most, 1, MPI_DOUBLE, MPI_MAX, 0, MPI_COMM_WORLD);
    MPI_Reduce(&own_us, &sum, 1, MPI_DOUBLE, MPI_SUM, 0, MPI_COMM_WORLD);
    MPI_Allreduce(&is_valid, &all_valid, 1, MPI_INT, MPI_MIN, MPI_COMM_WORLD);
    if (rank == 0) {
        printf("%-10zu%20.3f", bytes, sum / ranks);
        if (options.full)
            printf("%20.2f%20.2f%12d", least, most, timed);
        printf("\n");
        fflush(stdout);
    }
    if (!all_valid) {
        fprintf(stderr, "rank %d: wrong result with %zu bytes\n", rank, bytes);
        MPI_Abort(MPI_COMM_WORLD, 2);
    }
}

int holds(const char *buffer, size_t bytes, char byte)
{
    for (size_t i = 0; options.validate && i < bytes; i++)
        if (buffer[i] != byte)
            return 0;
    return 1;
}

int holds_float(const float *buffer, size_t count, float value)
{
    for (size_t i = 0; options.validate && i < count; i++)
        if (buffer[i] != value)
            return 0;
    return 1;
}

static const struct { const char *name; int (*run)(void); } benchmarks[] = {
    { "latency", latency }, { "bw", bandwidth }, { "barrier", barrier }, { "bcast", broadcast }, { "reduce", reduce },
    { "allreduce", allreduce }, { "allgather", allgather }, { "alltoall", alltoall }, { "floor", floor_of_two_flags },
};

static int usage(void)
{
    if (rank == 0)
        fprintf(stderr, "usage: osu BENCHMARK [-m SMALLEST:LARGEST] [-i ITERATIONS] [-x SKIPPED] [-f] [-c]\n");
    MPI_Finalize();
    return 2;
}

int main(int count, char **arguments)
{
    MPI_Init(&count, &arguments);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &ranks);
    if (count < 2)
        return usage();
    for (int i = 2; i < count; i++) {
        const char *word = arguments[i];
        const char *value = i + 1 < count ? arguments[i + 1] : "";
        if (strcmp(word, "-f") == 0) {
            options.full = 1;
        } else if (strcmp(word, "-c") == 0) {
            options.validate = 1;
        } else if (strcmp(word, "-i") == 0) {
            options.iterations = atoi(value);
            i++;
        } else if (strcmp(word, "-x") == 0) {
            options.skipped = atoi(value);
            i++;
        } else if (strcmp(word, "-m") == 0) {
            const char *colon = strchr(value, ':');
            options.smallest = colon && colon != value ? strtoul(value, NULL, 10) : options.smallest;
            options.largest = strtoul(colon ? colon + 1 : value, NULL, 10);
            i++;
        } else {
            return usage();
        }
    }
    for (size_t i = 0; i < sizeof benchmarks / sizeof *benchmarks; i++)
        if (strcmp(arguments[1], benchmarks[i].name) == 0) {
            int code = benchmarks[i].run();
            MPI_Finalize();
            return code;
        }
    return usage();
}
