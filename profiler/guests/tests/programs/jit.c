// Generates two functions at run time and spends its time in them as 3 : 1. Arguments: seconds of CPU time, then how the
// functions are named: "map" writes /tmp/perf-PID.map, "dump FOLDER" writes a jitdump, "none" neither. With a dump the
// second function is written over the first one.
#define _GNU_SOURCE
#include <fcntl.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

#define KEPT __attribute__((noinline, noclone))

// push rbp; mov rbp, rsp; 1: dec rdi; jnz 1b; pop rbp; ret
static const unsigned char loop[] = {0x55, 0x48, 0x89, 0xe5, 0x48, 0xff, 0xcf, 0x75, 0xfb, 0x5d, 0xc3};
typedef void function(uint64_t);

static uint64_t now_ns(clockid_t clock) {
    struct timespec now;
    clock_gettime(clock, &now);
    return now.tv_sec * 1000000000ull + now.tv_nsec;
}

KEPT void run(unsigned char *code, double seconds) {
    uint64_t end = now_ns(CLOCK_THREAD_CPUTIME_ID) + seconds * 1e9;
    while (now_ns(CLOCK_THREAD_CPUTIME_ID) < end) ((function *)code)(100000);
    __asm__ volatile("");
}

static void write_load(int dump, unsigned char *code, uint64_t number, const char *name) {
    uint32_t bytes = 16 + 40 + strlen(name) + 1 + sizeof loop;
    uint32_t head[] = {0, bytes};
    uint64_t time = now_ns(CLOCK_MONOTONIC);
    uint64_t body[] = {(uint64_t)getpid() << 32 | getpid(), (uint64_t)code, (uint64_t)code, sizeof loop, number};
    if (write(dump, head, 8) + write(dump, &time, 8) + write(dump, body, 40) != 56) exit(2);
    if (write(dump, name, strlen(name) + 1) < 0 || write(dump, loop, sizeof loop) < 0) exit(2);
}

static int start_dump(const char *folder) {
    char path[4096];
    snprintf(path, sizeof path, "%s/jit-%d.dump", folder, getpid());
    int dump = open(path, O_RDWR | O_CREAT | O_TRUNC, 0644);
    uint32_t head[] = {0x4a695444, 1, 40, 62, 0, getpid()};
    uint64_t rest[] = {now_ns(CLOCK_MONOTONIC), 0};
    if (write(dump, head, 24) + write(dump, rest, 16) != 40) exit(2);
    if (mmap(0, 4096, PROT_READ | PROT_EXEC, MAP_PRIVATE, dump, 0) == MAP_FAILED) exit(2);
    return dump;
}

int main(int count, char **arguments) {
    double seconds = count > 1 ? atof(arguments[1]) : 1;
    const char *how = count > 2 ? arguments[2] : "none";
    unsigned char *code = mmap(0, 4096, PROT_READ | PROT_WRITE | PROT_EXEC, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    memcpy(code, loop, sizeof loop);
    if (!strcmp(how, "dump")) {
        int dump = start_dump(arguments[3]);
        write_load(dump, code, 0, "generated_often");
        run(code, seconds * 0.75);
        memcpy(code, loop, sizeof loop);
        write_load(dump, code, 1, "generated_rarely");
        run(code, seconds * 0.25);
        return 0;
    }
    unsigned char *other = code + 256;
    memcpy(other, loop, sizeof loop);
    if (!strcmp(how, "map")) {
        char path[64];
        snprintf(path, sizeof path, "/tmp/perf-%d.map", getpid());
        FILE *map = fopen(path, "w");
        // What lay there before, and what replaced it.
        fprintf(map, "%lx %zx replaced_before\n", (unsigned long)code, sizeof loop);
        fprintf(map, "%lx %zx generated_often\n", (unsigned long)code, sizeof loop);
        fprintf(map, "%lx %zx generated_rarely\n", (unsigned long)other, sizeof loop);
        fclose(map);
    }
    for (int i = 0; i < 20; i++) {
        run(code, seconds * 0.75 / 20);
        run(other, seconds * 0.25 / 20);
    }
    return 0;
}
