// One function with three names, a function with an entry that has a name and a size of its own, and a call of a library.
#include <stdlib.h>

__attribute__((noinline)) long work(long n) {
    volatile long sum = 0;
    for (long i = 0; i < n; i++) sum += i;
    return sum;
}
static long __impl_v2(long) __attribute__((alias("work"), used));
long __work_internal(long) __attribute__((alias("work"), weak));
long a_weak_name(long) __attribute__((alias("work"), weak));

__asm__(".text\n"
        ".globl outer\n.type outer,@function\nouter:\n  nop\n"
        ".globl outer_fast\n.type outer_fast,@function\nouter_fast:\n  nop\n  nop\n.size outer_fast,.-outer_fast\n"
        "outer_rest:\n  nop\n  ret\n.size outer,.-outer\n");
long outer(long);

int main(int count, char **words) {
    return (int)(work(count) + outer(count) + labs(strtol(words[0], 0, 10)));
}
