// Writes what the kernel reports of itself and of its tasks as a tar archive (ustar) to the file or disk of argument 1: files of /proc by
// their paths there, and sysrq-w, the messages that the key w of sysrq adds. One process does all of it, so little changes meanwhile.
#define _GNU_SOURCE
#include <ctype.h>
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/utsname.h>
#include <unistd.h>

#define BLOCK 512
#define FILE_MAX (64 << 20)

static int archive;
static char *buffer;

static void fail(const char *what) {
    perror(what);
    exit(1);
}

static void put(const void *bytes, size_t count) {
    const char *at = bytes;
    while (count > 0) {
        ssize_t written = write(archive, at, count);
        if (written <= 0)
            fail("write");
        at += written;
        count -= written;
    }
}

// Adds a file with the first bytes of the buffer.
static void add(const char *name, size_t count) {
    char header[BLOCK] = {0};
    if (strlen(name) >= 100) {
        fprintf(stderr, "%s: the name is too long\n", name);
        exit(1);
    }
    strcpy(header, name);
    strcpy(header + 100, "0000644");
    strcpy(header + 108, "0000000");
    strcpy(header + 116, "0000000");
    snprintf(header + 124, 12, "%011zo", count);
    snprintf(header + 136, 12, "%011o", 0);
    memset(header + 148, ' ', 8);
    header[156] = '0';
    memcpy(header + 257, "ustar\00000", 8);
    unsigned sum = 0;
    for (int i = 0; i < BLOCK; i++)
        sum += (unsigned char)header[i];
    snprintf(header + 148, 8, "%06o", sum);
    put(header, BLOCK);
    size_t padded = (count + BLOCK - 1) / BLOCK * BLOCK;
    memset(buffer + count, 0, padded - count);
    put(buffer, padded);
}

// Adds a file of the kernel; without a message if it cannot be read, because a task may end meanwhile.
static void copy(const char *folder, const char *name) {
    char path[300];
    snprintf(path, sizeof path, "/%s/%s", folder, name);
    int file = open(path, O_RDONLY);
    if (file < 0)
        return;
    size_t count = 0;
    ssize_t got;
    while (count < FILE_MAX && (got = read(file, buffer + count, FILE_MAX - count)) > 0)
        count += got;
    close(file);
    add(path + 1, count);
}

// Adds where a link of the kernel leads.
static void copy_link(const char *folder, const char *name) {
    char path[300];
    snprintf(path, sizeof path, "/%s/%s", folder, name);
    ssize_t count = readlink(path, buffer, 4096);
    if (count >= 0)
        add(path + 1, count);
}

static void each_number(const char *folder, void (*visit)(const char *)) {
    char path[280];
    snprintf(path, sizeof path, "/%s", folder);
    DIR *entries = opendir(path);
    if (!entries)
        return;
    struct dirent *entry;
    while ((entry = readdir(entries))) {
        snprintf(path, sizeof path, "%s/%s", folder, entry->d_name);
        if (isdigit((unsigned char)entry->d_name[0]))
            visit(path);
    }
    closedir(entries);
}

static void copy_thread(const char *folder) {
    static const char *const names[] = {"stat", "comm", "status", "stack", "syscall", "wchan"};
    for (size_t i = 0; i < sizeof names / sizeof *names; i++)
        copy(folder, names[i]);
}

static void copy_process(const char *folder) {
    static const char *const names[] = {"maps", "cgroup", "cmdline", "auxv", "mountinfo"};
    char tasks[300];
    snprintf(tasks, sizeof tasks, "%s/task", folder);
    each_number(tasks, copy_thread);
    for (size_t i = 0; i < sizeof names / sizeof *names; i++)
        copy(folder, names[i]);
    copy_link(folder, "exe");
    copy_link(folder, "root");
    copy_link(folder, "ns/pid");
}

// Adds the messages of sysrq-w, without their records' heads.
static void copy_blocked(void) {
    int messages = open("/dev/kmsg", O_RDONLY | O_NONBLOCK), keys = open("/proc/sysrq-trigger", O_WRONLY);
    if (messages < 0 || keys < 0 || lseek(messages, 0, SEEK_END) < 0 || write(keys, "w", 1) != 1)
        fail("sysrq");
    static char record[16384];
    size_t count = 0;
    ssize_t got;
    while ((got = read(messages, record, sizeof record - 1)) > 0 || (got < 0 && errno == EPIPE)) {
        if (got < 0)
            continue;
        record[got] = 0;
        char *text = strchr(record, ';');
        char *end = strchr(record, '\n');
        if (!text || !end || count + (end - text) > FILE_MAX)
            continue;
        memcpy(buffer + count, text + 1, end - text);
        count += end - text;
    }
    add("sysrq-w", count);
}

int main(int count, char **words) {
    static const char *const names[] = {"kallsyms", "modules", "version", "cmdline", "meminfo", "iomem", "cpuinfo", "mounts", "uptime"};
    buffer = malloc(FILE_MAX + BLOCK);
    archive = count == 2 ? open(words[1], O_WRONLY | O_CREAT | O_TRUNC, 0644) : -1;
    if (!buffer || archive < 0)
        fail("the archive");
    struct utsname name;
    uname(&name);
    add("uname", snprintf(buffer, 1024, "%s %s %s %s %s\n", name.sysname, name.nodename, name.release, name.version, name.machine));
    for (size_t i = 0; i < sizeof names / sizeof *names; i++)
        copy("proc", names[i]);
    copy_blocked();
    each_number("proc", copy_process);
    memset(buffer, 0, 2 * BLOCK);
    put(buffer, 2 * BLOCK);
    if (fsync(archive) != 0)
        fail("fsync");
    return 0;
}
