// Makes system calls of many kinds, one after the other, without limit: most of its time is the kernel's. It stays on one processor.
#define _GNU_SOURCE
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#define BYTES 32768
#define ROUNDS 64

static char buffer[BYTES];

static void check(int is_right) {
    if (!is_right)
        exit(1);
}

// Copies by way of a pipe, within the kernel's own buffers.
static void pass(int *ends) {
    for (int i = 0; i < ROUNDS; i++) {
        check(write(ends[1], buffer, 4096) == 4096);
        check(read(ends[0], buffer, 4096) == 4096);
    }
}

static void read_zeros(int zeros) {
    for (int i = 0; i < ROUNDS / 8; i++)
        check(read(zeros, buffer, 4096) == 4096);
}

// Walks along paths.
static void look_up(void) {
    struct stat status;
    for (int i = 0; i < ROUNDS; i++) {
        check(stat("/sys/block/../kernel/../block/vda", &status) == 0);
        int file = open("/proc/self/status", O_RDONLY);
        check(file >= 0 && close(file) == 0);
    }
}

// The kernel makes the text of a file.
static void read_text(void) {
    int file = open("/proc/self/status", O_RDONLY);
    for (int i = 0; i < ROUNDS / 4; i++)
        check(pread(file, buffer, 4096, 0) > 0);
    check(close(file) == 0);
}

// Each page is one that has to be cleared and mapped.
static void fault(void) {
    char *pages = mmap(0, BYTES, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    check(pages != MAP_FAILED);
    for (size_t i = 0; i < BYTES; i += 4096)
        pages[i] = 1;
    check(munmap(pages, BYTES) == 0);
}

static void call(void) {
    for (int i = 0; i < ROUNDS * 8; i++)
        syscall(SYS_getppid);
}

int main(void) {
    int ends[2], zeros = open("/dev/zero", O_RDONLY);
    check(zeros >= 0 && pipe(ends) == 0);
    for (;;) {
        pass(ends);
        read_zeros(zeros);
        look_up();
        read_text();
        fault();
        call();
    }
}
