// Starts a thread that computes every 50 us, up to 60, and a child with one such thread; ends after the seconds in its argument.
#define _GNU_SOURCE
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <time.h>
#include <unistd.h>

static volatile long sinks[61 * 8];

static void *compute(void *at) {
    volatile long *sink = at;
    for (;;) (*sink)++;
    return 0;
}

int main(int count, char **arguments) {
    // Whoever looks at it shall get a CPU.
    setpriority(PRIO_PROCESS, 0, 19);
    pid_t child = fork();
    if (child == 0) {
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        prctl(PR_SET_NAME, "child");
        compute((void *)&sinks[60 * 8]);
    }
    printf("%d\n", child);
    fflush(stdout);
    for (int i = 0; i < 60; i++) {
        pthread_t thread;
        if (pthread_create(&thread, 0, compute, (void *)&sinks[i * 8])) return 1;
        struct timespec wait = {0, 50000};
        nanosleep(&wait, 0);
    }
    sleep(atoi(arguments[count - 1]));
    kill(child, SIGKILL);
    return 0;
}
