// Leaves three processes that are blocked without being interruptible (state D), each with a name of its own, and ends when all are:
// vfork-parent waits for the child of its vfork, frozen-write and frozen-open for a file system that is frozen at the folder of argument 1.
#define _GNU_SOURCE
#include <fcntl.h>
#include <linux/fs.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/prctl.h>
#include <unistd.h>

#define WAITS_MAX 1000

__attribute__((noipa)) static void wait_in_vfork(void) {
    if (vfork() == 0) {
        prctl(PR_SET_NAME, "vfork-child");
        for (;;)
            pause();
    }
}

__attribute__((noipa)) static void write_to_frozen(int file) {
    if (write(file, "x", 1) != 1)
        perror("write");
}

__attribute__((noipa)) static void open_in_frozen(const char *path) {
    if (open(path, O_CREAT | O_RDWR, 0644) < 0)
        perror("open");
}

// Waits until a process is in state D; 0 if it is not in time.
static int waits(pid_t pid) {
    for (int i = 0; i < WAITS_MAX; i++) {
        char path[64], line[256] = "";
        snprintf(path, sizeof path, "/proc/%d/stat", pid);
        FILE *file = fopen(path, "r");
        if (file) {
            if (!fgets(line, sizeof line, file))
                line[0] = 0;
            fclose(file);
        }
        if (strstr(line, ") D "))
            return 1;
        usleep(10000);
    }
    fprintf(stderr, "process %d does not wait\n", pid);
    return 0;
}

int main(int count, char **words) {
    if (count != 2)
        return 2;
    char file_path[256], other_path[256];
    snprintf(file_path, sizeof file_path, "%s/file", words[1]);
    snprintf(other_path, sizeof other_path, "%s/other", words[1]);
    int folder = open(words[1], O_RDONLY), file = open(file_path, O_CREAT | O_RDWR, 0644);
    if (folder < 0 || file < 0 || ioctl(folder, FIFREEZE, 0) != 0) {
        perror(words[1]);
        return 1;
    }
    pid_t pids[3];
    for (int i = 0; i < 3; i++) {
        pids[i] = fork();
        if (pids[i] == 0) {
            static const char *const names[3] = {"vfork-parent", "frozen-write", "frozen-open"};
            prctl(PR_SET_NAME, names[i]);
            if (i == 0)
                wait_in_vfork();
            else if (i == 1)
                write_to_frozen(file);
            else
                open_in_frozen(other_path);
            _exit(1);
        }
    }
    return !(waits(pids[0]) && waits(pids[1]) && waits(pids[2]));
}
