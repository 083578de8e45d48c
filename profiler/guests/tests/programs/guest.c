// What the bare guest does: calls a, b and c with weights 10, 30 and 60 for ever. Each frame holds
// the number of the round in a word with a mark, so that a stack that was copied while it changed
// can be told from a whole one.
#include <stdint.h>

#ifdef ALL_CORES
#include "guest_others.h"
#endif

#define KEPT __attribute__((noinline, noclone))
#define MARK(function) volatile uint64_t mark = (0xc0dedull << 44) | ((uint64_t)(function) << 40) | (round & 0xffffffffff)

// Of each core. Bits 38 and 39 of the number in a frame are the core's number.
volatile uint64_t rounds[4];
#ifndef UNIT
#define UNIT 400
#endif
volatile uint64_t unit = UNIT;

#ifdef SAYS_STATE
// As an image of ours has it: core 0 says that it runs, no other has been started.
struct {
    uint32_t magic, activity;
    uint8_t rest[56];
} GLASS_CORES[8] = {{.magic = 0x434c4753, .activity = 1}};
#endif

#ifdef LEAVES
// Two instructions without a frame: most samples hit it, at its entry or its return.
KEPT uint64_t leaf(uint64_t value) {
    __asm__ volatile("" : "+r"(value));
    return value + 1;
}

static inline __attribute__((always_inline)) void spin(uint64_t units) {
    for (uint64_t count = units * unit / 4; count; count--) leaf(count);
}
#else
static inline __attribute__((always_inline)) void spin(uint64_t units) {
    uint64_t count = units * unit;
    __asm__ volatile("1: dec %0\n jnz 1b" : "+r"(count)::"cc");
}
#endif

KEPT uint64_t c(uint64_t round) {
    MARK(3);
    spin(60);
    return mark;
}

KEPT uint64_t b(uint64_t round) {
    MARK(2);
    spin(30);
    return c(round) + mark;
}

KEPT uint64_t a(uint64_t round) {
    MARK(1);
    spin(10);
    return b(round) + mark;
}

// Linux has a function of this name, as other kernels do: it makes none a Linux.
__attribute__((used)) KEPT uint64_t divide_error(uint64_t value) {
    return value + 2;
}

#if defined HALTS || defined CONTENDS
static inline uint64_t ticks(void) {
    uint32_t low, high;
    __asm__ volatile("rdtsc" : "=a"(low), "=d"(high));
    return (uint64_t)high << 32 | low;
}
#endif

#ifdef CONTENDS
// A lock that is taken in the order of arrival, and for how many ticks each core has waited for it.
volatile uint64_t arrived, served, waited[4];

KEPT void acquire(uint64_t core) {
    uint64_t start = ticks(), mine = __atomic_fetch_add(&arrived, 1, __ATOMIC_ACQUIRE);
    while (__atomic_load_n(&served, __ATOMIC_ACQUIRE) != mine) {}
    waited[core] += ticks() - start;
}

KEPT void hold(void) {
    spin(1);
    __atomic_fetch_add(&served, 1, __ATOMIC_RELEASE);
}

KEPT void outside(void) {
    spin(2);
}

// With four cores there is always one that waits: each holds the lock for a quarter of the time.
static void contend(uint64_t core) {
    for (;;) {
        acquire(core);
        hold();
        outside();
        rounds[core]++;
    }
}
#endif

#ifdef HALTS
// Halts and computes in turn. Nothing interrupts it, so who runs it has to end each halt, or it is the last.
static void halt_and_compute(uint64_t core) {
    rounds[core] = 10;
    for (;;) {
        __asm__ volatile("sti\n hlt\n cli");
        for (uint64_t start = ticks(); ticks() - start < 20000000;) {}
        rounds[core]++;
    }
}
#endif

void run(uint64_t core) {
#ifdef HALTS
    halt_and_compute(core);
#endif
#ifdef ALL_CORES
    if (core == 0) start_other_cores();
#endif
#ifdef CONTENDS
    contend(core);
#endif
    for (;;) {
        a(core << 38 | (rounds[core] & 0x3fffffffff));
        rounds[core]++;
    }
}
