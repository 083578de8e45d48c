/* What the benchmarks share: options, tables, and checks of what arrived. */
#ifndef GLASS_OSU_H
#define GLASS_OSU_H

#include <mpi.h>
#include <stddef.h>

struct options {
    size_t smallest, largest; /* bytes of a message */
    int iterations, skipped;  /* 0: the suite's, which depend on the size */
    int full;                 /* the fastest and the slowest rank, and the iterations, too */
    int validate;
};

extern struct options options;
extern int rank, ranks;

/* The suite's numbers: messages up to 8192 bytes are repeated more often. */
struct repetitions { int timed, skipped; };
struct repetitions repetitions(size_t bytes, int small, int small_skipped, int large, int large_skipped);

void *allocate(size_t bytes);
void head(const char *title, const char *column);
/* One line of a collective table from this rank's mean in microseconds; rank 0 prints. */
void collective_line(size_t bytes, double own_us, int timed, int is_valid);
/* Whether all bytes of a buffer are `byte`; always true where nothing is validated. */
int holds(const char *buffer, size_t bytes, char byte);
int holds_float(const float *buffer, size_t count, float value);

int latency(void);
int bandwidth(void);
int barrier(void);
int broadcast(void);
int reduce(void);
int allreduce(void);
int allgather(void);
int alltoall(void);
int floor_of_two_flags(void);

#endif
