// Functions that call another, directly, by a pointer, and one that jumps to it as its last action.
__attribute__((noinline, noclone)) int callee(int number) {
    __asm__ volatile("" : "+r"(number));
    return number + 1;
}

__attribute__((noinline, noclone)) int caller(int number) {
    return callee(number) * 3;
}

int (*volatile pointer)(int) = callee;

__attribute__((noinline, noclone)) int caller_by_pointer(int number) {
    return pointer(number) * 3;
}

__attribute__((noinline, noclone)) int jumper(int number) {
    return callee(number * 5);
}

__attribute__((noinline, noclone)) int caller_of_jumper(int number) {
    return jumper(number) * 3;
}

int main(int count, char **arguments) {
    (void)arguments;
    return caller(count) + caller_by_pointer(count) + caller_of_jumper(count);
}
