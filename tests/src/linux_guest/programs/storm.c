// storm THREADS PER_SECOND: a process with so many threads that wait, in which a thread starts and ends so many times a second, and another process
// that starts as many that end at once.
#include <pthread.h>
#include <stdlib.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

enum { STACK_BYTES = 16 << 10 };

static void *waits(void *argument) {
    for (;;)
        pause();
    return argument;
}

static void *ends(void *argument) {
    return argument;
}

static void fork_once(void) {
    pid_t child = fork();
    if (child == 0)
        _exit(0);
    if (child < 0 || waitpid(child, 0, 0) != child)
        exit(1);
}

static pthread_attr_t small;

static void start_thread_once(void) {
    pthread_t thread;
    if (pthread_create(&thread, &small, ends, 0) != 0 || pthread_join(thread, 0) != 0)
        exit(1);
}

static void repeat(void (*what)(void), long per_second) {
    struct timespec next;
    clock_gettime(CLOCK_MONOTONIC, &next);
    for (;;) {
        what();
        next.tv_nsec += 1000000000 / per_second;
        if (next.tv_nsec >= 1000000000) {
            next.tv_sec++;
            next.tv_nsec -= 1000000000;
        }
        clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &next, 0);
    }
}

int main(int count, char **arguments) {
    if (count != 3)
        return 1;
    long threads = atol(arguments[1]), per_second = atol(arguments[2]);
    // Forked first: it has no copies of the stacks.
    pid_t forks = fork();
    if (forks < 0)
        return 1;
    if (forks == 0) {
        prctl(PR_SET_NAME, "forks");
        repeat(fork_once, per_second);
    }
    pthread_attr_init(&small);
    pthread_attr_setstacksize(&small, STACK_BYTES);
    for (long thread = 0; thread < threads; thread++) {
        pthread_t started;
        if (pthread_create(&started, &small, waits, 0) != 0)
            return 1;
    }
    prctl(PR_SET_NAME, "has-threads");
    repeat(start_thread_once, per_second);
}
