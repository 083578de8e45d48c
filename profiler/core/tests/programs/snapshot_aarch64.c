// Prints its own registers (pc, sp, x29, x30) and its stack from there upwards, three calls deep. Linked statically: addresses are those of the file.
#include <stdint.h>
#include <stdio.h>

#define INNERMOST __attribute__((noinline, noclone))
#define STACK_BYTES 6144

static uint8_t copy[STACK_BYTES];
static uint64_t pc, sp, fp, lr;

INNERMOST int c(int depth) {
    volatile int local = depth;
    __asm__ volatile("adr %0, .\n mov %1, sp\n mov %2, x29\n mov %3, x30" : "=&r"(pc), "=&r"(sp), "=&r"(fp), "=&r"(lr));
    for (int i = 0; i < STACK_BYTES; i++) copy[i] = ((volatile uint8_t *)sp)[i];
    return local + 1;
}

INNERMOST int b(int depth) {
    volatile int local[5] = {depth};
    return c(local[0] + 1) + local[1];
}

INNERMOST int a(int depth) {
    volatile int local[9] = {depth};
    return b(local[0] + 1) + local[2];
}

int main(int count, char **arguments) {
    // The environment and the arguments lie above: there is enough stack to copy.
    char room[4096];
    __asm__ volatile("" : : "r"(room) : "memory");
    int result = a(count);
    printf("%lx %lx %lx %lx\n", pc, sp, fp, lr);
    for (int i = 0; i < STACK_BYTES; i++) printf("%02x", copy[i]);
    printf("\n");
    (void)arguments;
    return result == -1;
}
