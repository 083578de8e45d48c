// Computes without limit, at the lowest priority, in a chain of calls: main, outer, middle, inner. No call is a tail call, and no loop is unrolled into another function.
#include <unistd.h>

volatile unsigned long result;

__attribute__((noipa)) unsigned long inner(unsigned long value) {
    for (unsigned long i = 0; i < 100000; i++)
        value = value * 31 + i;
    return value;
}

__attribute__((noipa)) unsigned long middle(unsigned long value) {
    return inner(value) + 1;
}

__attribute__((noipa)) unsigned long outer(unsigned long value) {
    return middle(value) ^ 5;
}

int main(void) {
    if (nice(19) != 19)
        return 1;
    for (;;)
        result = outer(result);
}
