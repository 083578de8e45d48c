// One process, at the lowest priority, with threads that are named after what they do: two compute, the others wait, each in another system call.
#define _GNU_SOURCE
#include <poll.h>
#include <pthread.h>
#include <stdlib.h>
#include <sys/epoll.h>
#include <time.h>
#include <unistd.h>

static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t never = PTHREAD_COND_INITIALIZER;
static int ends[2];
volatile unsigned long counter;

__attribute__((noipa)) static void compute(void) {
    for (int i = 0; i < 100000; i++)
        counter = counter * 31 + i;
}

static void *computes(void *argument) {
    for (;;)
        compute();
    return argument;
}

static void *waits_in_futex(void *argument) {
    pthread_mutex_lock(&mutex);
    for (;;)
        pthread_cond_wait(&never, &mutex);
    return argument;
}

static void *waits_in_nanosleep(void *argument) {
    struct timespec time = {100000, 0};
    for (;;)
        nanosleep(&time, 0);
    return argument;
}

static void *waits_in_poll(void *argument) {
    struct pollfd wanted = {ends[0], POLLIN, 0};
    for (;;)
        poll(&wanted, 1, -1);
    return argument;
}

static void *waits_in_read(void *argument) {
    char byte;
    while (read(ends[0], &byte, 1) >= 0)
        ;
    return argument;
}

static void *waits_in_epoll(void *argument) {
    struct epoll_event event;
    int list = epoll_create1(0);
    for (;;)
        epoll_wait(list, &event, 1, -1);
    return argument;
}

static void start(const char *name, void *(*function)(void *)) {
    pthread_t thread;
    if (pthread_create(&thread, 0, function, 0) != 0)
        exit(1);
    pthread_setname_np(thread, name);
}

int main(void) {
    if (nice(19) != 19 || pipe(ends) != 0)
        return 1;
    start("computes-0", computes);
    start("computes-1", computes);
    start("in-futex", waits_in_futex);
    start("in-nanosleep", waits_in_nanosleep);
    start("in-poll", waits_in_poll);
    start("in-read", waits_in_read);
    start("in-epoll", waits_in_epoll);
    for (;;)
        pause();
}
