static int scale(int value) {
    return value * 3;
}
static inline __attribute__((always_inline)) int inner(int value) {
    volatile int kept = scale(value); // line 5
    return kept;
}
static inline __attribute__((always_inline)) int middle(int value) {
    return inner(value + 1); // line 9
}
__attribute__((noinline)) int outer(int value) {
    return middle(value) + 2; // line 12
}
int main(int count, char **arguments) {
    (void)arguments;
    return outer(count) == 0;
}
