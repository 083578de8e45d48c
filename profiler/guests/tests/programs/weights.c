// Uses CPU time in c, b and a as 60 : 30 : 10, each deeper than the other; with an argument, in that
// many threads, started one after the other. With one more the first thread ends before the others.
#include <pthread.h>
#include <stdint.h>
#include <stdlib.h>
#include <time.h>

#define KEPT __attribute__((noinline, noclone))

static inline __attribute__((always_inline)) void spin(uint64_t units) {
    uint64_t count = units * 2000;
#ifdef SPREAD
    // Samples lie at many addresses.
    uint64_t value = count;
    __asm__ volatile("1: .rept 16\n imul $3, %1, %1\n .endr\n dec %0\n jnz 1b" : "+r"(count), "+r"(value)::"cc");
#else
    __asm__ volatile("1: dec %0\n jnz 1b" : "+r"(count)::"cc");
#endif
}

KEPT void c(void) { spin(60); __asm__ volatile(""); }
KEPT void b(void) { spin(30); c(); __asm__ volatile(""); }
KEPT void a(void) { spin(10); b(); __asm__ volatile(""); }

static double seconds(void) {
    struct timespec now;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
    return now.tv_sec + now.tv_nsec * 1e-9;
}

static double limit;

void *work(void *unused) {
    while (seconds() < limit) a();
    return unused;
}

int main(int count, char **arguments) {
    limit = count > 1 ? atof(arguments[1]) : 1.0;
    int threads = count > 2 ? atoi(arguments[2]) : 0;
    if (threads == 0) work(0);
    for (int i = 0; i < threads; i++) {
        pthread_t thread;
        if (pthread_create(&thread, 0, work, 0)) return 1;
        pthread_setname_np(thread, i ? "second" : "first");
        if (count > 3) continue;
        pthread_join(thread, 0);
    }
    if (count > 3) pthread_exit(0);
    return 0;
}
