/* Between ranks 0 and 1: half a round trip, and the rate of a window of messages. */
#include "osu.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { WINDOW = 64, TAG = 1 };

static int needs_two(void)
{
    if (ranks == 2)
        return 1;
    if (rank == 0)
        fprintf(stderr, "this benchmark needs exactly 2 ranks\n");
    return 0;
}

static void wrong(size_t bytes)
{
    fprintf(stderr, "rank %d: wrong data with %zu bytes\n", rank, bytes);
    MPI_Abort(MPI_COMM_WORLD, 2);
}

int latency(void)
{
    if (!needs_two())
        return 2;
    char *sent = allocate(options.largest), *received = allocate(options.largest);
    int peer = 1 - rank;
    head("latency", "Latency (us)");
    for (size_t bytes = options.smallest; bytes <= options.largest; bytes = bytes ? bytes * 2 : 1) {
        struct repetitions times = repetitions(bytes, 10000, 100, 1000, 10);
        memset(sent, 'a' + rank, bytes);
        memset(received, 0, bytes);
        double start = 0;
        MPI_Barrier(MPI_COMM_WORLD);
        for (int i = 0; i < times.skipped + times.timed; i++) {
            if (i == times.skipped)
                start = MPI_Wtime();
            if (rank == 0) {
                MPI_Send(sent, (int)bytes, MPI_CHAR, peer, TAG, MPI_COMM_WORLD);
                MPI_Recv(received, (int)bytes, MPI_CHAR, peer, TAG, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
            } else {
                MPI_Recv(received, (int)bytes, MPI_CHAR, peer, TAG, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
                MPI_Send(sent, (int)bytes, MPI_CHAR, peer, TAG, MPI_COMM_WORLD);
            }
        }
        double us = (MPI_Wtime() - start) * 1e6 / (2.0 * times.timed);
        if (!holds(received, bytes, (char)('a' + peer)))
            wrong(bytes);
        if (rank == 0) {
            printf("%-10zu%20.3f\n", bytes, us);
            fflush(stdout);
        }
    }
    free(sent);
    free(received);
    return 0;
}

int bandwidth(void)
{
    if (!needs_two())
        return 2;
    char *buffer = allocate(options.largest), answer = 0;
    int peer = 1 - rank;
    MPI_Request requests[WINDOW];
    head("bandwidth", "Bandwidth (MB/s)");
    for (size_t bytes = options.smallest; bytes <= options.largest; bytes = bytes ? bytes * 2 : 1) {
        struct repetitions times = repetitions(bytes, 100, 10, 20, 2);
        memset(buffer, rank == 0 ? 'a' : 0, bytes);
        double start = 0;
        MPI_Barrier(MPI_COMM_WORLD);
        for (int i = 0; i < times.skipped + times.timed; i++) {
            if (i == times.skipped)
                start = MPI_Wtime();
            for (int j = 0; j < WINDOW; j++) {
                if (rank == 0)
                    MPI_Isend(buffer, (int)bytes, MPI_CHAR, peer, TAG, MPI_COMM_WORLD, &requests[j]);
                else
                    MPI_Irecv(buffer, (int)bytes, MPI_CHAR, peer, TAG, MPI_COMM_WORLD, &requests[j]);
            }
            MPI_Waitall(WINDOW, requests, MPI_STATUSES_IGNORE);
            if (rank == 0)
                MPI_Recv(&answer, 1, MPI_CHAR, peer, TAG, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
            else
                MPI_Send(&answer, 1, MPI_CHAR, peer, TAG, MPI_COMM_WORLD);
        }
        double seconds = MPI_Wtime() - start;
        if (!holds(buffer, bytes, 'a'))
            wrong(bytes);
        if (rank == 0) {
            printf("%-10zu%20.3f\n", bytes, (double)bytes * WINDOW * times.timed / seconds / 1e6);
            fflush(stdout);
        }
    }
    free(buffer);
    return 0;
}
