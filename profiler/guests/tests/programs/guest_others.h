// Has the first core start all others, which then run the same code: by the local APIC, as a machine without
// firmware that keeps cores for us wants it.
#include <stdint.h>

// In real mode, at a page of its own: loads a GDT with flat segments and goes on in 32-bit code.
__asm__(".pushsection .rodata\n"
        ".globl other_start, other_end\n"
        ".code16\n"
        "other_start:\n"
        "    cli\n"
        "    lgdtl %cs:other_gdt_pointer - other_start\n"
        "    movl %cr0, %eax\n"
        "    orb $1, %al\n"
        "    movl %eax, %cr0\n"
        "    ljmpl $8, $other_flat\n"
        "    .align 8\n"
        "other_gdt_pointer:\n"
        "    .word 23\n"
        "    .long other_gdt\n"
        "other_end:\n"
        "    .align 8\n"
        "other_gdt: .quad 0, 0x00cf9b000000ffff, 0x00cf93000000ffff\n"
        ".popsection\n"
        ".pushsection .text\n"
        ".code32\n"
        "other_flat:\n"
        "    movl $16, %eax\n"
        "    movl %eax, %ds\n"
        "    movl %eax, %es\n"
        "    movl %eax, %ss\n"
        "    movl $1, %eax\n"
        "    cpuid\n"
        "    shrl $24, %ebx\n"    // The APIC's number is the core's.
        "    jmp entry_other\n"
        ".code64\n"
        ".popsection\n");

extern const uint8_t other_start[], other_end[];

static inline void start_other_cores(void) {
    enum { PAGE = 8, APIC = 0xfee00000u, COMMAND = 0x300, SPURIOUS = 0xf0, ALL_OTHERS = 3 << 18 };
    uint64_t cr3;
    __asm__ volatile("mov %%cr3, %0" : "=r"(cr3));
    // The fourth gigabyte, in one page that is not cached: the APIC is there.
    uint64_t *level4 = (uint64_t *)cr3;
    uint64_t *level3 = (uint64_t *)(level4[0] & ~0xfffull);
    level3[3] = 0xc0000000ull | 0x93;
    volatile uint8_t *page = (volatile uint8_t *)(PAGE << 12);
    for (uint64_t at = 0; at < (uint64_t)(other_end - other_start); at++) page[at] = other_start[at];
    volatile uint8_t *apic = (volatile uint8_t *)(uint64_t)APIC;
    *(volatile uint32_t *)(apic + SPURIOUS) = 0x1ff;
    *(volatile uint32_t *)(apic + COMMAND) = ALL_OTHERS | 0x4500;
    for (volatile int wait = 0; wait < 100000; wait++) {}
    *(volatile uint32_t *)(apic + COMMAND) = ALL_OTHERS | 0x4600 | PAGE;
}
