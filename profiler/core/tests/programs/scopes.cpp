// Local functions of C++, of which debug information has the last part of the name alone.
namespace outer {
template <class F> __attribute__((noinline)) long repeated(F f, long n) {
    volatile long sum = 0;
    for (long i = 0; i < n; i++) sum += f(i);
    return sum;
}
namespace {
__attribute__((noinline)) long hidden(long x) { return x * 3; }
}
long all(long n) {
    auto twice = [](long x) __attribute__((noinline)) { return 2 * x; };
    auto next = [](long x) __attribute__((noinline)) { return x + 1; };
    return repeated(twice, n) + repeated(next, n) + hidden(n);
}
}
int main(int count, char **) { return outer::all(count) == 1; }
