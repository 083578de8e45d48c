// What a guest of the Xen tests does: calls chains of five functions for ever, one colour after the other. A stack that was
// copied while it changed has functions of several colours.
#include <stdint.h>

#define KEPT __attribute__((noinline, noclone))
#ifndef UNIT
#define UNIT 60
#endif

volatile uint64_t unit = UNIT;

static inline __attribute__((always_inline)) void spin(uint64_t count) {
    __asm__ volatile("1: dec %0\n jnz 1b" : "+r"(count)::"cc");
}

#define STEP(name, next)              \
    KEPT uint64_t name(uint64_t n) {  \
        volatile uint64_t mark = n;   \
        spin(n);                      \
        return next(n) + mark;        \
    }
#define LAST(n) (n)
#define CHAIN(colour)                  \
    STEP(colour##_5, LAST)             \
    STEP(colour##_4, colour##_5)       \
    STEP(colour##_3, colour##_4)       \
    STEP(colour##_2, colour##_3)       \
    STEP(colour##_1, colour##_2)

CHAIN(red)
CHAIN(blue)
CHAIN(gold)
CHAIN(gray)
CHAIN(pink)
CHAIN(teal)

static inline __attribute__((always_inline)) void work(void) {
    for (;;) {
        red_1(unit);
        blue_1(unit);
        gold_1(unit);
        gray_1(unit);
        pink_1(unit);
        teal_1(unit);
    }
}

#ifdef CORES
#include "cores.h"
#endif

#ifdef WAITS
// Until an event comes, of which none is for us.
KEPT void wait(void) {
    volatile uint64_t mark = 0;
    for (;;) {
#ifdef PV
        static struct { uint64_t ports, count, timeout; } none;
        // SCHEDOP_poll, without the page of hypercalls, in which no frame pointer would lead to us.
        uint64_t number = 29, command = 3, argument = (uint64_t)&none;
        __asm__ volatile("syscall" : "+a"(number), "+D"(command), "+S"(argument)::"rcx", "r11", "memory");
#else
        __asm__ volatile("sti\n hlt");
#endif
        mark++;
    }
}
#endif

void run(void) {
    volatile uint64_t mark = 0;
#ifdef CORES
    start_cores();
#endif
#ifdef WAITS
    wait();
#endif
    work();
    mark++;
}
