/* Each function that the OSU suite's collectives and point-to-point programs call (their undefined symbols), once, with its result checked. */
#define _GNU_SOURCE
#include <getopt.h>
#include <math.h>
#include <mpi.h>
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <unistd.h>

static int rank, ranks;

#define CHECK(condition)                                                            \
    do {                                                                            \
        if (!(condition)) {                                                         \
            printf("rank %d: line %d: %s is false\n", rank, __LINE__, #condition);  \
            fflush(stdout);                                                         \
            MPI_Abort(MPI_COMM_WORLD, 9);                                           \
        }                                                                           \
    } while (0)

static void options(void)
{
    static const struct option names[] = {
        { "iterations", required_argument, 0, 'i' }, { "full", no_argument, 0, 'f' },
        { "message-size", required_argument, 0, 'm' }, { 0, 0, 0, 0 },
    };
    char words[][24] = { "osu", "--iterations", "100", "-f", "--message-size=4:1024", "rest" };
    char *list[] = { words[0], words[1], words[2], words[3], words[4], words[5], NULL };
    int iterations = 0, is_full = 0, smallest = 0, option;
    long long largest = 0;
    while ((option = getopt_long(6, list, "+i:fm:", names, NULL)) != -1) {
        if (option == 'i')
            iterations = atoi(optarg);
        if (option == 'f')
            is_full = 1;
        if (option == 'm') {
            char *part = strtok(optarg, ":");
            smallest = atoi(part);
            part = strtok(NULL, ":");
            largest = atoll(part);
        }
    }
    CHECK(iterations == 100 && is_full && smallest == 4 && largest == 1024);
    CHECK(strcmp(list[optind], "rest") == 0);
    char *short_list[] = { words[0], (char[]) { "-q" }, NULL };
    optind = 1;
    opterr = 0;
    CHECK(getopt(2, short_list, "+:i:") == '?' && optopt == 'q');
    CHECK(strncasecmp("CUDA", "cudaX", 4) == 0);
}

static void output(void)
{
    char line[64];
    fputs("# OSU MPI Latency Test\n", stdout);
    fprintf(stdout, "%-*d%*.*f\n", 10, 4, 18, 2, 1.25);
    puts("puts");
    fputc('c', stdout);
    putchar('\n');
    CHECK(fwrite("fwrite\n", 1, 7, stdout) == 7);
    fprintf(stderr, "to stderr of %d\n", rank);
    CHECK(snprintf(line, sizeof line, "%-10s|%8.3f|%zu", "size", M_PI, sizeof line) == 22 && strlen(line) == 22);
    CHECK(fflush(stdout) == 0 && fflush(stderr) == 0);
}

static void library(void)
{
    void *aligned = NULL, *plain = malloc(100);
    long page = sysconf(_SC_PAGESIZE);
    CHECK(page == 4096 && sysconf(_SC_NPROCESSORS_ONLN) >= 1);
    CHECK(posix_memalign(&aligned, page, 3 << 20) == 0 && (uintptr_t) aligned % page == 0);
    memset(aligned, 'a', 3 << 20);
    CHECK(plain && ((char *) aligned)[(3 << 20) - 1] == 'a');
    free(plain);
    free(aligned);
    CHECK(fabs(pow(2.0, 0.5) - sqrt(2.0)) < 1e-12 && floor(log2(1024.5)) == 10);
    char host[256];
    CHECK(gethostname(host, sizeof host) == 0 && getenv("NO_SUCH_VARIABLE") == NULL);
    double start = MPI_Wtime();
    CHECK(sleep(1) == 0 && usleep(1000) == 0 && MPI_Wtime() - start > 0.9);
}

static void *nothing(void *argument)
{
    return argument;
}

/* A VM has no threads: to make one is an error that the program sees. */
static void threads(int has_threads)
{
    pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
    pthread_cond_t changed;
    pthread_t thread;
    CHECK(pthread_mutex_init(&mutex, NULL) == 0 && pthread_cond_init(&changed, NULL) == 0);
    CHECK(pthread_mutex_lock(&mutex) == 0 && pthread_cond_broadcast(&changed) == 0 && pthread_mutex_unlock(&mutex) == 0);
    int made = pthread_create(&thread, NULL, nothing, &mutex);
    void *result = NULL;
    CHECK((made == 0) == has_threads);
    CHECK(made != 0 || (pthread_join(thread, &result) == 0 && result == &mutex));
    CHECK(pthread_cond_destroy(&changed) == 0 && pthread_mutex_destroy(&mutex) == 0);
}

static void messages(void)
{
    enum { WINDOW = 64, BYTES = 8192 };
    static char sent[BYTES], received[WINDOW][BYTES];
    MPI_Request requests[WINDOW];
    MPI_Status statuses[WINDOW], status;
    int peer = rank ^ 1, flag = 0;
    memset(sent, 'a' + rank, BYTES);
    if (peer < ranks) {
        for (int i = 0; i < WINDOW; i++)
            CHECK(MPI_Irecv(received[i], BYTES, MPI_CHAR, peer, 10, MPI_COMM_WORLD, &requests[i]) == MPI_SUCCESS);
        MPI_Request out[WINDOW];
        for (int i = 0; i < WINDOW; i++)
            CHECK(MPI_Isend(sent, BYTES, MPI_CHAR, peer, 10, MPI_COMM_WORLD, &out[i]) == MPI_SUCCESS);
        CHECK(MPI_Waitall(WINDOW, requests, statuses) == MPI_SUCCESS && received[WINDOW - 1][BYTES - 1] == 'a' + peer);
        CHECK(MPI_Waitall(WINDOW, out, MPI_STATUSES_IGNORE) == MPI_SUCCESS);
        if (rank < peer)
            CHECK(MPI_Send(sent, 4, MPI_CHAR, peer, 1, MPI_COMM_WORLD) == MPI_SUCCESS);
        else
            CHECK(MPI_Recv(received[0], 4, MPI_CHAR, peer, 1, MPI_COMM_WORLD, &status) == MPI_SUCCESS && status.MPI_TAG == 1);
    }
    CHECK(MPI_Ibarrier(MPI_COMM_WORLD, &requests[0]) == MPI_SUCCESS);
    while (!flag)
        CHECK(MPI_Test(&requests[0], &flag, &status) == MPI_SUCCESS);
    CHECK(MPI_Ibcast(sent, 16, MPI_CHAR, 0, MPI_COMM_WORLD, &requests[0]) == MPI_SUCCESS);
    CHECK(MPI_Wait(&requests[0], &status) == MPI_SUCCESS && sent[15] == 'a');
}

static void collectives(void)
{
    float *one = malloc(ranks * sizeof *one), *all = malloc(ranks * sizeof *all), own = rank + 1, sum = 0;
    int *counts = malloc(ranks * sizeof *counts), *places = malloc(ranks * sizeof *places);
    for (int i = 0; i < ranks; i++) {
        one[i] = rank * 100 + i;
        counts[i] = 1;
        places[i] = i;
    }
    float expected = ranks * (ranks + 1) / 2.0f;
    MPI_Barrier(MPI_COMM_WORLD);
    MPI_Reduce(&own, &sum, 1, MPI_FLOAT, MPI_SUM, 0, MPI_COMM_WORLD);
    CHECK(rank != 0 || sum == expected);
    MPI_Bcast(&sum, 1, MPI_FLOAT, 0, MPI_COMM_WORLD);
    CHECK(sum == expected);
    double least = rank, most = rank, result;
    MPI_Allreduce(&least, &result, 1, MPI_DOUBLE, MPI_MIN, MPI_COMM_WORLD);
    CHECK(result == 0);
    MPI_Allreduce(&most, &result, 1, MPI_DOUBLE, MPI_MAX, MPI_COMM_WORLD);
    CHECK(result == ranks - 1);
    MPI_Gather(&own, 1, MPI_FLOAT, all, 1, MPI_FLOAT, 0, MPI_COMM_WORLD);
    CHECK(rank != 0 || all[ranks - 1] == ranks);
    MPI_Gatherv(&own, 1, MPI_FLOAT, all, counts, places, MPI_FLOAT, 0, MPI_COMM_WORLD);
    CHECK(rank != 0 || all[ranks - 1] == ranks);
    MPI_Scatter(one, 1, MPI_FLOAT, &sum, 1, MPI_FLOAT, 0, MPI_COMM_WORLD);
    CHECK(sum == rank);
    MPI_Scatterv(one, counts, places, MPI_FLOAT, &sum, 1, MPI_FLOAT, 0, MPI_COMM_WORLD);
    CHECK(sum == rank);
    MPI_Allgather(&own, 1, MPI_FLOAT, all, 1, MPI_FLOAT, MPI_COMM_WORLD);
    CHECK(all[0] == 1 && all[ranks - 1] == ranks);
    MPI_Allgatherv(&own, 1, MPI_FLOAT, all, counts, places, MPI_FLOAT, MPI_COMM_WORLD);
    CHECK(all[0] == 1 && all[ranks - 1] == ranks);
    MPI_Alltoall(one, 1, MPI_FLOAT, all, 1, MPI_FLOAT, MPI_COMM_WORLD);
    CHECK(all[0] == rank && all[ranks - 1] == (ranks - 1) * 100 + rank);
    MPI_Alltoallv(one, counts, places, MPI_FLOAT, all, counts, places, MPI_FLOAT, MPI_COMM_WORLD);
    CHECK(all[0] == rank && all[ranks - 1] == (ranks - 1) * 100 + rank);
    MPI_Reduce_scatter(one, &sum, counts, MPI_FLOAT, MPI_SUM, MPI_COMM_WORLD);
    CHECK(sum == 100 * ranks * (ranks - 1) / 2 + ranks * rank);
    MPI_Comm half;
    int size;
    MPI_Comm_split(MPI_COMM_WORLD, rank % 2, rank, &half);
    MPI_Comm_size(half, &size);
    CHECK(size == (rank % 2 ? ranks / 2 : (ranks + 1) / 2));
    MPI_Comm_free(&half);
    free(one);
    free(all);
    free(counts);
    free(places);
}

int main(int count, char **words)
{
    int provided;
    MPI_Init_thread(&count, &words, MPI_THREAD_SINGLE, &provided);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &ranks);
    options();
    output();
    library();
    threads(count > 1 && strcmp(words[1], "threads") == 0);
    messages();
    collectives();
    printf("rank %d: fine\n", rank);
    MPI_Finalize();
    exit(EXIT_SUCCESS);
}
