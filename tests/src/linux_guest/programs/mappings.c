// Has memory of many kinds, and waits. The first 8 bytes of each page that it may write are the page's own address, exclusive or MARK.
// Arguments: files that it maps to be read.
#define _GNU_SOURCE
#include <fcntl.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <unistd.h>

#define MARK 0x5a5a123456789abcull
#define PAGE 4096
#define HUGE (2 << 20)

static char *map(size_t bytes, int rights, int flags, int file) {
    char *memory = mmap(0, bytes, rights, flags, file, 0);
    if (memory == MAP_FAILED) {
        perror("mmap");
        exit(1);
    }
    if (rights & PROT_WRITE)
        for (size_t at = 0; at < bytes; at += PAGE)
            *(uint64_t *)(memory + at) = (uint64_t)(memory + at) ^ MARK;
    return memory;
}

// A new file of four pages.
static int new_file(const char *path) {
    int file = open(path, O_CREAT | O_RDWR, 0644);
    if (file < 0 || ftruncate(file, 4 * PAGE) != 0) {
        perror(path);
        exit(1);
    }
    return file;
}

int main(int count, char **words) {
    const int both = PROT_READ | PROT_WRITE;
    // A file in memory whose name has a space, one that is deleted, one without a name, and memory that is shared.
    map(4 * PAGE, both, MAP_SHARED, new_file("/tmp/a file"));
    map(4 * PAGE, both, MAP_SHARED, new_file("/tmp/deleted"));
    unlink("/tmp/deleted");
    int unnamed = memfd_create("unnamed", 0);
    if (unnamed < 0 || ftruncate(unnamed, 4 * PAGE) != 0)
        return 1;
    map(4 * PAGE, both, MAP_SHARED, unnamed);
    map(4 * PAGE, both, MAP_SHARED | MAP_ANONYMOUS, -1);
    // Pages of a file on the disk of which the first one is changed in private.
    char *changed = map(4 * PAGE, PROT_READ, MAP_PRIVATE, open("/app/static", O_RDONLY));
    if (mprotect(changed, PAGE, both) != 0)
        return 1;
    *(uint64_t *)changed = (uint64_t)changed ^ MARK;
    // A shared mapping that can never be written.
    map(PAGE, PROT_READ, MAP_SHARED, open("/app/static", O_RDONLY));
    // Huge pages, if the kernel has some; memory with a name, if the kernel has names.
    char *huge = mmap(0, 3 * HUGE, both, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    madvise(huge, 3 * HUGE, MADV_HUGEPAGE);
    for (size_t at = 0; at < 3 * HUGE; at += PAGE)
        *(uint64_t *)(huge + at) = (uint64_t)(huge + at) ^ MARK;
    char *named = map(4 * PAGE, both, MAP_PRIVATE | MAP_ANONYMOUS, -1);
    prctl(0x53564d41 /* PR_SET_VMA */, 0, named, 4 * PAGE, "name");
    // Memory that is not accessible, and some that was never touched.
    map(16 * PAGE, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1);
    map(16 * PAGE, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS, -1);
    for (int i = 1; i < count; i++) {
        int file = open(words[i], O_RDONLY);
        volatile char *memory = map(PAGE, PROT_READ, MAP_PRIVATE, file);
        if (lseek(file, 0, SEEK_END) > 0)
            (void)memory[0];
    }
    prctl(PR_SET_NAME, "has-mappings");
    for (;;)
        pause();
}
