// Functions whose callers are found by other rules than most: the stack pointer of the caller in another register, or in
// memory; a return address in a register; registers saved where an expression leads; signal handlers. Prints the registers
// of the innermost function by their DWARF numbers, its address, and its stack. Linked statically: addresses are those of the file.
#define _GNU_SOURCE
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

#define STACK_BYTES 32768

uint8_t copy[STACK_BYTES];
uint64_t registers[17];

// Copies registers and stack, and changes none of them.
__asm__(
    ".macro snapshot\n"
    "mov %rax, registers\n mov %rdx, registers+8\n mov %rcx, registers+16\n mov %rbx, registers+24\n"
    "mov %rsi, registers+32\n mov %rdi, registers+40\n mov %rbp, registers+48\n mov %rsp, registers+56\n"
    "mov %r8, registers+64\n mov %r9, registers+72\n mov %r10, registers+80\n mov %r11, registers+88\n"
    "mov %r12, registers+96\n mov %r13, registers+104\n mov %r14, registers+112\n mov %r15, registers+120\n"
    "movq $9f, registers+128\n"
    "9: mov %rsp, %rsi\n mov $copy, %edi\n mov $32768, %ecx\n rep movsb\n"
    "mov registers+16, %rcx\n mov registers+32, %rsi\n mov registers+40, %rdi\n"
    ".endm\n"
    ".macro start name\n .text\n .globl \\name\n .type \\name, @function\n \\name:\n .cfi_startproc\n .endm\n"
    ".macro end name\n .cfi_endproc\n .size \\name, . - \\name\n .endm\n"
    // The caller's stack pointer in a register, in the innermost function and above it.
    ".macro by name, register\n start \\name\n mov %rsp, %\\register\n .cfi_def_cfa_register %\\register\n and $-64, %rsp\n sub $256, %rsp\n"
    "snapshot\n mov %\\register, %rsp\n .cfi_def_cfa_register %rsp\n ret\n end \\name\n .endm\n"
    "by by_rax rax\n by by_r10 r10\n by by_r11 r11\n by by_r15 r15\n"
    // The caller's stack pointer in memory: DW_CFA_def_cfa_expression (DW_OP_breg7 8, DW_OP_deref, DW_OP_const1u 8, DW_OP_plus).
    "start by_memory\n mov %rsp, %rax\n .cfi_def_cfa_register %rax\n sub $64, %rsp\n mov %rax, 8(%rsp)\n"
    ".cfi_escape 0x0f, 6, 0x77, 8, 0x06, 0x08, 8, 0x22\n xor %eax, %eax\n snapshot\n mov 8(%rsp), %rsp\n .cfi_def_cfa %rsp, 8\n ret\n end by_memory\n"
    // As vfork: the return address is in a register.
    "start by_return\n pop %rdi\n .cfi_adjust_cfa_offset -8\n .cfi_register %rip, %rdi\n snapshot\n push %rdi\n .cfi_adjust_cfa_offset 8\n"
    ".cfi_rel_offset %rip, 0\n ret\n end by_return\n"
    // The caller's r12, by which the caller's frame is found, lies where an expression on the CFA leads: DW_CFA_expression r12
    // (DW_OP_const1s -40, DW_OP_plus), and is saved in another register.
    "start leaf_memory\n sub $40, %rsp\n .cfi_adjust_cfa_offset 40\n mov %r12, 8(%rsp)\n .cfi_escape 0x10, 12, 3, 0x09, 0xd8, 0x22\n xor %r12d, %r12d\n"
    "snapshot\n mov 8(%rsp), %r12\n add $40, %rsp\n .cfi_adjust_cfa_offset -40\n .cfi_restore %r12\n ret\n end leaf_memory\n"
    "start leaf_register\n mov %r12, %r9\n .cfi_register %r12, %r9\n xor %r12d, %r12d\n snapshot\n mov %r9, %r12\n .cfi_restore %r12\n ret\n end leaf_register\n"
    ".macro above name, leaf\n start \\name\n push %r12\n .cfi_adjust_cfa_offset 8\n .cfi_rel_offset %r12, 0\n mov %rsp, %r12\n .cfi_def_cfa_register %r12\n"
    "and $-64, %rsp\n call \\leaf\n mov %r12, %rsp\n .cfi_def_cfa_register %rsp\n pop %r12\n .cfi_adjust_cfa_offset -8\n ret\n end \\name\n .endm\n"
    "above by_saved_memory leaf_memory\n above by_saved_register leaf_register\n"
    // A rule that needs a register which is not there: it is undefined in the innermost function.
    "start leaf_undefined\n .cfi_undefined %r12\n snapshot\n ret\n end leaf_undefined\n above by_nothing leaf_undefined\n"
    // A handler, and code that it interrupts in front of its first instruction: ud2. The handler steps over it.
    "start handler_code\n snapshot\n ret\n end handler_code\n"
    "start interrupted\n ud2\n ret\n end interrupted\n"
    // As musl has it: how a handler returns, without an unwind table.
    ".text\n nop\n restorer: mov $15, %rax\n syscall\n");

void by_rax(void), by_r10(void), by_r11(void), by_r15(void), by_memory(void), by_return(void), by_saved_memory(void);
void by_saved_register(void), by_nothing(void), handler_code(void), interrupted(void), restorer(void);

static void handler(int number, siginfo_t *information, void *context) {
    (void)number, (void)information;
    handler_code();
    ((ucontext_t *)context)->uc_mcontext.gregs[REG_RIP] += 2;
}

static void handle(void) {
    struct sigaction action = {.sa_sigaction = handler, .sa_flags = SA_SIGINFO};
    sigaction(SIGILL, &action, 0);
    interrupted();
}

static void handle_elsewhere(void) {
    stack_t other = {.ss_sp = malloc(65536), .ss_size = 65536};
    sigaltstack(&other, 0);
    struct sigaction action = {.sa_sigaction = handler, .sa_flags = SA_SIGINFO | SA_ONSTACK};
    sigaction(SIGILL, &action, 0);
    interrupted();
}

static void handle_without_table(void) {
    struct { void (*handler)(int, siginfo_t *, void *); unsigned long flags; void (*restorer)(void); unsigned long mask; } action =
        {handler, SA_SIGINFO | 0x04000000, restorer, 0};
    syscall(SYS_rt_sigaction, SIGILL, &action, 0, 8);
    interrupted();
}

__attribute__((noinline, noclone)) void caller(const char *name) {
    static const struct { const char *name; void (*function)(void); } all[] = {
        {"by_rax", by_rax}, {"by_r10", by_r10}, {"by_r11", by_r11}, {"by_r15", by_r15}, {"by_memory", by_memory},
        {"by_return", by_return}, {"by_saved_memory", by_saved_memory}, {"by_saved_register", by_saved_register},
        {"by_nothing", by_nothing}, {"handle", handle}, {"handle_elsewhere", handle_elsewhere},
        {"handle_without_table", handle_without_table}};
    for (unsigned index = 0; index < sizeof all / sizeof *all; index++)
        if (!strcmp(name, all[index].name)) all[index].function();
    __asm__ volatile("");
}

int main(int count, char **arguments) {
    // With an environment of as many bytes above, as the test makes it, there is enough stack to copy, and it has the start of main:
    // a signal puts up to 12 KiB in between (the registers of AMX).
    char room[STACK_BYTES / 2];
    __asm__ volatile("" : : "r"(room) : "memory");
    caller(arguments[count - 1]);
    for (int i = 0; i < 17; i++) printf("%lx ", registers[i]);
    printf("\n");
    for (int i = 0; i < STACK_BYTES; i++) printf("%02x", copy[i]);
    printf("\n");
    return 0;
}
