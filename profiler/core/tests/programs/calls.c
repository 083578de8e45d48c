// A function that calls another directly.
__attribute__((noinline, noclone)) int callee(int number) {
    __asm__ volatile("" : "+r"(number));
    return number + 1;
}

__attribute__((noinline, noclone)) int caller(int number) {
    return callee(number) * 3;
}

int main(int count, char **arguments) {
    (void)arguments;
    return caller(count);
}
