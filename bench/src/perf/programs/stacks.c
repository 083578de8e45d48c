// Runs one kind of function for ever whose stacks are hard to unwind: signal, vfork, probe or align.
#define _GNU_SOURCE
#include <signal.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#define APART __attribute__((noinline, noclone))

static volatile long sink;

static void spin(long count) {
    for (long i = 0; i < count; i++) sink += i;
}

static void handler(int number) {
    spin(20000);
    sink += number;
}

APART static void raised(void) {
    raise(SIGUSR1);
    sink++;
}

APART static void spawned(void) {
    pid_t child = vfork();
    if (child == 0) _exit(0);
    waitpid(child, 0, 0);
}

// With -fstack-clash-protection each page of the frame is touched in a loop, while another register holds its end.
APART static void probed(long at) {
    volatile char large[16 << 10];
    large[at] = 1;
    sink += large[at];
}

// A variable that must be aligned more than the stack: the caller's frame is found by a saved pointer.
APART static void aligned(int bytes) {
    float values[16] __attribute__((aligned(64)));
    char *more = __builtin_alloca(bytes);
    memset(more, 1, bytes);
    values[0] = more[bytes - 1];
    for (volatile float *value = values; value < values + 1; value++) spin((long)*value * 2000);
    sink++;
}

APART static void caller(const char *kind) {
    for (;;) {
        if (!strcmp(kind, "signal")) raised();
        if (!strcmp(kind, "vfork")) spawned();
        if (!strcmp(kind, "probe")) for (int i = 0; i < 1000; i++) probed(i);
        if (!strcmp(kind, "align")) aligned(100);
    }
}

int main(int count, char **arguments) {
    signal(SIGUSR1, handler);
    caller(arguments[count - 1]);
    return 0;
}
