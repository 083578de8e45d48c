// Calls the kernel without limit, at the usual priority: a process for each kind of work. Ends only when all have been started.
#define _GNU_SOURCE
#include <dirent.h>
#include <fcntl.h>
#include <linux/futex.h>
#include <net/if.h>
#include <netinet/in.h>
#include <poll.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <sys/timerfd.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#define PAGE 4096
#define REGION (64 * PAGE)

static const char *own_path;

// Bytes that go to another process and back.
static void exchange(int to_child[2], int from_child[2]) {
    char bytes[512] = "";
    if (fork() == 0)
        while (read(to_child[0], bytes, sizeof bytes) > 0 && write(from_child[1], bytes, sizeof bytes) > 0)
            ;
    while (write(to_child[1], bytes, sizeof bytes) > 0 && read(from_child[0], bytes, sizeof bytes) > 0)
        ;
}

static void pipes(void) {
    int to_child[2], from_child[2];
    if (pipe(to_child) == 0 && pipe(from_child) == 0)
        exchange(to_child, from_child);
}

static void unix_sockets(void) {
    int pair[2];
    if (socketpair(AF_UNIX, SOCK_STREAM, 0, pair) == 0)
        exchange((int[]){pair[1], pair[0]}, (int[]){pair[0], pair[1]});
}

// The system calls that do least.
static void short_calls(void) {
    for (;;) {
        syscall(SYS_getppid);
        syscall(SYS_getuid);
        syscall(SYS_sched_yield);
        prctl(PR_GET_DUMPABLE);
    }
}

static void read_whole(const char *path) {
    char bytes[PAGE];
    int file = open(path, O_RDONLY);
    while (file >= 0 && read(file, bytes, sizeof bytes) > 0)
        ;
    close(file);
}

// Files of /proc, and folders.
static void proc_files(void) {
    const char *paths[] = {"/proc/self/stat",   "/proc/self/maps", "/proc/self/smaps", "/proc/stat",
                           "/proc/meminfo",     "/proc/vmstat",    "/proc/interrupts", "/proc/self/status",
                           "/proc/self/stack",  "/proc/loadavg",   "/proc/net/dev",    "/sys/kernel/mm/transparent_hugepage/enabled"};
    for (;;) {
        for (size_t i = 0; i < sizeof paths / sizeof *paths; i++) {
            struct stat state;
            stat(paths[i], &state);
            read_whole(paths[i]);
        }
        DIR *folder = opendir("/proc");
        while (folder && readdir(folder))
            ;
        closedir(folder);
    }
}

// Writes to the disk, whose interrupts end them.
static void disk_files(void) {
    static char bytes[4 * PAGE];
    for (;;) {
        int file = open("/root/written", O_CREAT | O_TRUNC | O_RDWR, 0644);
        for (int i = 0; i < 4; i++)
            if (write(file, bytes, sizeof bytes) < 0)
                break;
        fdatasync(file);
        posix_fadvise(file, 0, 0, POSIX_FADV_DONTNEED);
        lseek(file, 0, SEEK_SET);
        while (read(file, bytes, sizeof bytes) > 0)
            ;
        close(file);
        rename("/root/written", "/root/renamed");
        unlink("/root/renamed");
    }
}

// Processes that end at once, and some that start this program anew.
static void processes(void) {
    for (unsigned i = 0;; i++) {
        pid_t child = fork();
        if (child == 0) {
            if (i % 4 == 0)
                execl(own_path, own_path, "end", (char *)0);
            _exit(0);
        }
        while (waitpid(child, 0, 0) < 0)
            ;
    }
}

static void page_faults(void) {
    for (;;) {
        volatile char *region = mmap(0, REGION, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        for (int i = 0; i < REGION; i += PAGE)
            region[i] = 1;
        mprotect((void *)region, REGION / 2, PROT_READ);
        madvise((void *)region, REGION, MADV_DONTNEED);
        (void)region[PAGE];
        munmap((void *)region, REGION);
    }
}

static uint32_t word;

static void futex_wait(uint32_t value) {
    while (__atomic_load_n(&word, __ATOMIC_SEQ_CST) == value)
        syscall(SYS_futex, &word, FUTEX_WAIT, value, 0, 0, 0);
}

static void futex_set(uint32_t value) {
    __atomic_store_n(&word, value, __ATOMIC_SEQ_CST);
    syscall(SYS_futex, &word, FUTEX_WAKE, 1, 0, 0, 0);
}

static void *answers(void *argument) {
    for (;;) {
        futex_wait(0);
        futex_set(0);
    }
    return argument;
}

static void futexes(void) {
    pthread_t thread;
    if (pthread_create(&thread, 0, answers, 0))
        return;
    for (;;) {
        futex_set(1);
        futex_wait(1);
    }
}

static void caught(int signal) {
    (void)signal;
}

// Signals: sent, of a timer, and of a fault.
static void signals(void) {
    struct sigaction action = {.sa_handler = caught};
    sigaction(SIGUSR1, &action, 0);
    sigaction(SIGALRM, &action, 0);
    struct itimerval often = {{0, 1000}, {0, 1000}};
    setitimer(ITIMER_REAL, &often, 0);
    for (;;)
        kill(getpid(), SIGUSR1);
}

static void timers(void) {
    int file = timerfd_create(CLOCK_MONOTONIC, 0), event = eventfd(0, EFD_NONBLOCK);
    struct itimerspec often = {{0, 200000}, {0, 200000}};
    timerfd_settime(file, 0, &often, 0);
    for (;;) {
        uint64_t value = 1;
        struct pollfd wanted[2] = {{file, POLLIN, 0}, {event, POLLIN, 0}};
        poll(wanted, 2, 1);
        if (read(file, &value, sizeof value) > 0 && write(event, &value, sizeof value) < 0)
            return;
        nanosleep(&(struct timespec){0, 1000}, 0);
        while (read(event, &value, sizeof value) > 0)
            ;
    }
}

// The network device of this machine alone is off at first.
static int loopback_on(void) {
    int any = socket(AF_INET, SOCK_DGRAM, 0);
    struct ifreq request = {.ifr_name = "lo", .ifr_flags = IFF_UP | IFF_RUNNING};
    int failed = ioctl(any, SIOCSIFFLAGS, &request);
    close(any);
    return !failed;
}

// A connection for each exchange.
static void tcp(void) {
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK), .sin_port = htons(7)};
    int listener = socket(AF_INET, SOCK_STREAM, 0);
    char bytes[1024] = "";
    setsockopt(listener, SOL_SOCKET, SO_REUSEADDR, &(int){1}, sizeof(int));
    if (!loopback_on() || bind(listener, (struct sockaddr *)&address, sizeof address) || listen(listener, 16))
        return;
    if (fork() == 0)
        for (;;) {
            int one = accept(listener, 0, 0);
            while (read(one, bytes, sizeof bytes) > 0 && write(one, bytes, sizeof bytes) > 0)
                ;
            close(one);
        }
    for (;;) {
        int one = socket(AF_INET, SOCK_STREAM, 0);
        if (connect(one, (struct sockaddr *)&address, sizeof address) == 0)
            for (int i = 0; i < 8 && write(one, bytes, sizeof bytes) > 0 && read(one, bytes, sizeof bytes) > 0; i++)
                ;
        // Ends it without waiting states, of which there would soon be too many.
        setsockopt(one, SOL_SOCKET, SO_LINGER, &(struct linger){1, 0}, sizeof(struct linger));
        close(one);
    }
}

// Goes from one CPU to the other, and has all of them do something.
static void other_cpus(void) {
    for (int cpu = 0;; cpu = !cpu) {
        cpu_set_t set;
        CPU_ZERO(&set);
        CPU_SET(cpu, &set);
        sched_setaffinity(0, sizeof set, &set);
        syscall(SYS_membarrier, 1, 0, 0);
    }
}

static void random_bytes(void) {
    static char bytes[PAGE];
    int zero = open("/dev/zero", O_RDONLY);
    for (;;)
        if (syscall(SYS_getrandom, bytes, 256, 0) < 0 || read(zero, bytes, sizeof bytes) < 0)
            return;
}

static const struct {
    const char *name;
    void (*function)(void);
} KINDS[] = {
    {"calls-pipes", pipes},         {"calls-unix", unix_sockets}, {"calls-short", short_calls},
    {"calls-proc", proc_files},     {"calls-disk", disk_files},   {"calls-fork", processes},
    {"calls-faults", page_faults},  {"calls-futex", futexes},     {"calls-signals", signals},
    {"calls-timers", timers},       {"calls-tcp", tcp},           {"calls-cpus", other_cpus},
    {"calls-random", random_bytes},
};

int main(int count, char **arguments) {
    if (count > 1)
        return 0;
    own_path = "/proc/self/exe";
    for (size_t i = 0; i < sizeof KINDS / sizeof *KINDS; i++)
        if (fork() == 0) {
            prctl(PR_SET_NAME, KINDS[i].name);
            KINDS[i].function();
            fprintf(stderr, "%s has ended\n", arguments[0]);
            return 1;
        }
    return 0;
}
