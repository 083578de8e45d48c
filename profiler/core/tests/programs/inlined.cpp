// Functions of C++ that no other file can call, and that are inlined.
#define INLINED inline __attribute__((always_inline))
namespace app {
namespace {
volatile long kept;
struct Table {
    INLINED long probe(long n) {
        for (long i = 0; i < n; i++) kept = kept + i;
        return kept;
    }
    struct Row {
        INLINED static long scan(long n) {
            for (long i = 0; i < n; i++) kept = kept * i;
            return kept;
        }
    };
};
INLINED long helper(long n) {
    for (long i = 0; i < n; i++) kept = kept ^ i;
    return kept;
}
}
long run(long n) {
    auto twice = [](long x) __attribute__((always_inline)) {
        for (long i = 0; i < x; i++) kept = kept - i;
        return kept;
    };
    return Table().probe(n) + Table::Row::scan(n) + helper(n) + twice(n);
}
}
extern "C" __attribute__((noinline)) long outer(long n) { return app::run(n); }
int main(int count, char **) { return outer(count) == 1; }
