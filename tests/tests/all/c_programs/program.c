/* What a C program does on its own and with other ranks, by the name of the case; each prints `rank R: fine`. */
#define _GNU_SOURCE
#include <errno.h>
#include <math.h>
#include <mpi.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/utsname.h>
#include <time.h>
#include <unistd.h>

static int rank, ranks;
static int data = 1000, zero[100];
static __thread int local = 7;
static const char constant[5000] = { [0] = 'a', [4999] = 'z' };

#define CHECK(condition)                                                            \
    do {                                                                            \
        if (!(condition)) {                                                         \
            printf("rank %d: line %d: %s is false\n", rank, __LINE__, #condition);  \
            fflush(stdout);                                                         \
            MPI_Abort(MPI_COMM_WORLD, 9);                                           \
        }                                                                           \
    } while (0)

/* Ranks write the same variables at the same time, and each finds its own values. */
static void globals(void)
{
    static int counter;
    for (int round = 0; round < 50; round++) {
        data += rank;
        zero[round] = rank + round;
        local += rank;
        counter += 2 * rank;
        MPI_Barrier(MPI_COMM_WORLD);
    }
    CHECK(data == 1000 + 50 * rank && local == 7 + 50 * rank && counter == 100 * rank);
    for (int round = 0; round < 50; round++)
        CHECK(zero[round] == rank + round);
    int sum;
    MPI_Allreduce(&data, &sum, 1, MPI_INT, MPI_SUM, MPI_COMM_WORLD);
    CHECK(sum == 1000 * ranks + 25 * ranks * (ranks - 1));
}

/* Memory of the allocator is zero where that is promised, stays what it is, and comes back. */
static void memory(void)
{
    enum { BLOCKS = 64 };
    unsigned char *blocks[BLOCKS] = { 0 };
    size_t sizes[BLOCKS] = { 0 };
    unsigned state = 12345 + rank;
    for (int step = 0; step < 4000; step++) {
        state = state * 1103515245 + 12345;
        int index = (state >> 16) % BLOCKS;
        size_t size = (state >> 8) % 40000 + 1;
        for (size_t i = 0; i < sizes[index]; i += 97)
            CHECK(blocks[index][i] == (unsigned char)(index + 1));
        if (step % 3 == 0) {
            blocks[index] = realloc(blocks[index], size);
        } else {
            free(blocks[index]);
            blocks[index] = calloc(size, 1);
            for (size_t i = 0; i < size; i++)
                CHECK(blocks[index][i] == 0);
        }
        CHECK(blocks[index] != NULL);
        sizes[index] = size;
        memset(blocks[index], index + 1, size);
    }
    for (int round = 0; round < 100; round++) {
        void *aligned = NULL;
        CHECK(posix_memalign(&aligned, 65536, 3 << 20) == 0 && (uintptr_t)aligned % 65536 == 0);
        memset(aligned, round, 3 << 20);
        free(aligned);
    }
    /* More than there is: an error, not a crash. */
    volatile size_t too_much = (size_t)1 << 45;
    void *huge = malloc(too_much);
    CHECK(huge == NULL && errno == ENOMEM);
}

/* A system call changes rax, rcx and r11 alone, and nothing below the stack pointer. */
static void registers(void)
{
    for (int round = 0; round < 1000; round++) {
        uint64_t in[32], out[32] = { 0 }, general[6] = { 3, 5, 7, 11, 13, 17 }, kept;
        for (int i = 0; i < 32; i++)
            in[i] = 0x0123456789abcdefULL * (i + round + 1);
        __asm__ volatile(
            "movq $0x5a5a5a5a, -64(%%rsp)\n"
            "movups 0(%[in]), %%xmm0\n movups 16(%[in]), %%xmm1\n movups 32(%[in]), %%xmm2\n movups 48(%[in]), %%xmm3\n"
            "movups 64(%[in]), %%xmm4\n movups 80(%[in]), %%xmm5\n movups 96(%[in]), %%xmm6\n movups 112(%[in]), %%xmm7\n"
            "movups 128(%[in]), %%xmm8\n movups 144(%[in]), %%xmm9\n movups 160(%[in]), %%xmm10\n movups 176(%[in]), %%xmm11\n"
            "movups 192(%[in]), %%xmm12\n movups 208(%[in]), %%xmm13\n movups 224(%[in]), %%xmm14\n movups 240(%[in]), %%xmm15\n"
            "movq 0(%[general]), %%rdi\n movq 8(%[general]), %%rsi\n movq 16(%[general]), %%rdx\n"
            "movq 24(%[general]), %%r10\n movq 32(%[general]), %%r8\n movq 40(%[general]), %%r9\n"
            "movl $39, %%eax\n syscall\n"
            "movq %%rdi, 0(%[general])\n movq %%rsi, 8(%[general])\n movq %%rdx, 16(%[general])\n"
            "movq %%r10, 24(%[general])\n movq %%r8, 32(%[general])\n movq %%r9, 40(%[general])\n"
            "movups %%xmm0, 0(%[out])\n movups %%xmm1, 16(%[out])\n movups %%xmm2, 32(%[out])\n movups %%xmm3, 48(%[out])\n"
            "movups %%xmm4, 64(%[out])\n movups %%xmm5, 80(%[out])\n movups %%xmm6, 96(%[out])\n movups %%xmm7, 112(%[out])\n"
            "movups %%xmm8, 128(%[out])\n movups %%xmm9, 144(%[out])\n movups %%xmm10, 160(%[out])\n movups %%xmm11, 176(%[out])\n"
            "movups %%xmm12, 192(%[out])\n movups %%xmm13, 208(%[out])\n movups %%xmm14, 224(%[out])\n movups %%xmm15, 240(%[out])\n"
            "movq -64(%%rsp), %[kept]\n"
            : [kept] "=r"(kept)
            : [in] "r"(in), [out] "r"(out), [general] "r"(general)
            : "rax", "rcx", "r11", "rdi", "rsi", "rdx", "r10", "r8", "r9", "memory", "xmm0", "xmm1", "xmm2", "xmm3", "xmm4", "xmm5",
              "xmm6", "xmm7", "xmm8", "xmm9", "xmm10", "xmm11", "xmm12", "xmm13", "xmm14", "xmm15");
        CHECK(kept == 0x5a5a5a5a && memcmp(in, out, sizeof in) == 0);
        CHECK(general[0] == 3 && general[1] == 5 && general[2] == 7 && general[3] == 11 && general[4] == 13 && general[5] == 17);
    }
}

static void library(void)
{
    char text[64];
    snprintf(text, sizeof text, "%.3f %.5Lf %g", sqrt(2.0), (long double)1 / 3, 1e300);
    CHECK(strcmp(text, "1.414 0.33333 1e+300") == 0);
    struct timespec start, end, pause = { 0, 20000000 };
    clock_gettime(CLOCK_MONOTONIC, &start);
    double before = MPI_Wtime();
    CHECK(nanosleep(&pause, NULL) == 0);
    double elapsed = MPI_Wtime() - before;
    clock_gettime(CLOCK_MONOTONIC, &end);
    double of_clock = (end.tv_sec - start.tv_sec) + (end.tv_nsec - start.tv_nsec) * 1e-9;
    CHECK(elapsed >= 0.0199 && of_clock >= 0.0199);
    /* 2020-09-13. */
    CHECK(time(NULL) > 1600000000);
    struct utsname name;
    CHECK(uname(&name) == 0 && strcmp(name.machine, "x86_64") == 0);
    CHECK(getenv("GLASS_NO_SUCH_VARIABLE") == NULL && sysconf(_SC_NPROCESSORS_ONLN) >= 1);
    CHECK(write(99, "x", 1) == -1 && errno == EBADF);
    CHECK(fopen("/no/such/file", "r") == NULL && errno == ENOENT);
    CHECK(constant[0] == 'a' && constant[4999] == 'z');
}

/* From constants, data and the heap, of lengths that are copied directly, to the rank behind. */
static void messages(void)
{
    int next = (rank + 1) % ranks, before = (rank + ranks - 1) % ranks;
    enum { LONG = 300000 };
    char *own = malloc(LONG), *received = malloc(LONG);
    memset(own, 'A' + rank, LONG);
    for (int round = 0; round < 20; round++) {
        MPI_Sendrecv(own, LONG, MPI_CHAR, next, 0, received, LONG, MPI_CHAR, before, 0, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
        for (int i = 0; i < LONG; i++)
            CHECK(received[i] == 'A' + before);
        MPI_Sendrecv(constant, 5000, MPI_CHAR, next, 1, received, 5000, MPI_CHAR, before, 1, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
        CHECK(memcmp(received, constant, 5000) == 0);
    }
}

/* Uses more stack than there is, a little at a time. */
static __attribute__((noinline)) int depth(int more)
{
    volatile char used[1000];
    used[more % 1000] = 1;
    return more == 0 ? 0 : depth(more - 1) + used[more % 1000] - 1;
}

/* Rank 0 waits for a message of rank 1, then all wait for rank 0. */
static void waits(void)
{
    struct timespec pause = { 0, 100000000 };
    int value = rank;
    if (rank == 1) {
        nanosleep(&pause, NULL);
        MPI_Send(&value, 1, MPI_INT, 0, 5, MPI_COMM_WORLD);
    } else if (rank == 0) {
        MPI_Recv(&value, 1, MPI_INT, 1, 5, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
        CHECK(value == 1);
        nanosleep(&pause, NULL);
    }
    MPI_Barrier(MPI_COMM_WORLD);
}

/* Computes until it is ended. */
__attribute__((noinline)) static void spin_in_c(volatile double *sum)
{
    for (double step = 1; *sum < 1e300; step += 1)
        *sum += 1 / step;
}

int main(int count, char **arguments)
{
    MPI_Init(&count, &arguments);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &ranks);
    const char *name = count > 1 ? arguments[1] : "";
    if (strcmp(name, "arguments") == 0) {
        CHECK(count == 4 && strcmp(arguments[2], "two words") == 0 && strcmp(arguments[3], "%41") == 0);
    } else if (strcmp(name, "globals") == 0) {
        globals();
    } else if (strcmp(name, "memory") == 0) {
        memory();
    } else if (strcmp(name, "registers") == 0) {
        registers();
    } else if (strcmp(name, "library") == 0) {
        library();
    } else if (strcmp(name, "messages") == 0) {
        messages();
    } else if (strcmp(name, "waits") == 0) {
        waits();
    } else if (strcmp(name, "spin") == 0) {
        volatile double sum = 0;
        printf("spinning\n");
        fflush(stdout);
        spin_in_c(&sum);
    } else if (strcmp(name, "lines") == 0) {
        for (int line = 0; line < 3000; line++) {
            printf("line %d of rank %d\n", line, rank);
            fflush(stdout);
        }
    } else if (strcmp(name, "null") == 0) {
        volatile uintptr_t nowhere = 8;
        if (rank == 1)
            *(volatile int *)nowhere = 1;
        MPI_Barrier(MPI_COMM_WORLD);
    } else if (strcmp(name, "stack") == 0) {
        CHECK(depth(1 << 30) == 0);
    } else if (strcmp(name, "fork") == 0) {
        CHECK(fork() == -1 && errno == ENOSYS && fork() == -1);
    } else {
        printf("there is no case %s\n", name);
        MPI_Abort(MPI_COMM_WORLD, 1);
    }
    /* Without the end of a line. */
    printf("rank %d: fine", rank);
    MPI_Finalize();
    return 0;
}
