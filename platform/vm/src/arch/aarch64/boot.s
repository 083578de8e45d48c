// From the VMM's entry at EL1 to Rust, the way of a secondary core, and what is saved at an exception.
//
// Rust runs at EL1 on SP_EL0, so that an exception finds another stack in SP_EL1. IRQs are masked for ever, and end a halt all the
// same; FIQs are not: a crash of another core stops this one by one. Reasons: docs/decisions/0050.

// Offsets in a core's block, at TPIDR_EL1: block.rs.
    .set CORE_STACK_TOP, 24
    .set CORE_FAULT_STACK_TOP, 32
    .set CORE_FAULT, 40

// Attributes of memory, by number: 0 normal, write-back; 1 registers of devices (Device-nGnRE).
    .set MAIR, 0x04ff
// 48 bits by TTBR0 alone, 4 KiB, tables in cached and shared memory, addresses of 48 bits.
    .set TCR, (16 | 1 << 8 | 1 << 10 | 3 << 12 | 1 << 23 | 5 << 32)
// What must be 1, stack alignment, caches and translation.
    .set SCTLR, 0x30d0180d

// The mark of our images: formats/src/lib.rs, NOTE_NAME and CONTRACT_VERSION.
    .section .note.glasshouse, "a", %note
    .align 2
    .word 11, 4, 1
    .asciz "Glasshouse"
    .align 2
    .word 1

    .section .boot, "ax"
// Makes translation by the tables at x9 work, and floating point.
    .macro enable_translation
    ldr x10, =MAIR
    msr mair_el1, x10
    ldr x10, =TCR
    msr tcr_el1, x10
    msr ttbr0_el1, x9
    mov x10, #(3 << 20)
    msr cpacr_el1, x10
    isb
    tlbi vmalle1
    dsb nsh
    ldr x10, =SCTLR
    msr sctlr_el1, x10
    isb
    adrp x10, vectors
    add x10, x10, :lo12:vectors
    msr vbar_el1, x10
    .endm

// Lets Rust run at x12 on its own stack; x11 is the core's block.
    .macro enter_rust
    msr tpidr_el1, x11
    ldr x10, [x11, #CORE_FAULT_STACK_TOP]
    mov sp, x10
    ldr x10, [x11, #CORE_STACK_TOP]
    msr sp_el0, x10
    msr spsel, #0
    msr daifclr, #1                 // FIQ
    mov x29, xzr                    // ends every call chain
    mov x30, xzr
    br x12
    .endm

    .globl glass_entry
    .type glass_entry, %function
glass_entry:                        // x0: address of the device tree, 0 if it is at the start of RAM
    msr daifset, #15
    mrs x1, cntvct_el0
    adrp x9, boot_tables
    add x9, x9, :lo12:boot_tables
    enable_translation
    adrp x2, glass_entry_ticks
    str x1, [x2, :lo12:glass_entry_ticks]
    adrp x11, GLASS_BOOT_CORE
    add x11, x11, :lo12:GLASS_BOOT_CORE
    adrp x10, glass_stack_top
    add x10, x10, :lo12:glass_stack_top
    str x10, [x11, #CORE_STACK_TOP]
    adrp x10, glass_fault_stack_top
    add x10, x10, :lo12:glass_fault_stack_top
    str x10, [x11, #CORE_FAULT_STACK_TOP]
    adrp x12, glass_start
    add x12, x12, :lo12:glass_start
    enter_rust
    .size glass_entry, . - glass_entry

// A secondary core comes from PSCI, without translation; x0 is its block. Its first words of memory are past the cache: processor.rs.
    .globl glass_core_entry
    .type glass_core_entry, %function
glass_core_entry:
    msr daifset, #15
    mov x11, x0
    adrp x9, glass_page_tables
    ldr x9, [x9, :lo12:glass_page_tables]
    enable_translation
    adrp x12, glass_core_start
    add x12, x12, :lo12:glass_core_start
    enter_rust
    .size glass_core_entry, . - glass_core_entry
    .ltorg

// An exception: saves what the report needs (layout: fault.rs) and goes on in Rust on a stack of its own. x0 = its number; x0 and x1 of the
// code are in registers that nothing else uses.
    .type exception, %function
exception:
    mrs x1, tpidr_el1
    add x1, x1, #CORE_FAULT
    str x0, [x1, #8 * 31]
    stp x2, x3, [x1, #8 * 2]
    stp x4, x5, [x1, #8 * 4]
    stp x6, x7, [x1, #8 * 6]
    stp x8, x9, [x1, #8 * 8]
    stp x10, x11, [x1, #8 * 10]
    stp x12, x13, [x1, #8 * 12]
    stp x14, x15, [x1, #8 * 14]
    stp x16, x17, [x1, #8 * 16]
    stp x18, x19, [x1, #8 * 18]
    stp x20, x21, [x1, #8 * 20]
    stp x22, x23, [x1, #8 * 22]
    stp x24, x25, [x1, #8 * 24]
    stp x26, x27, [x1, #8 * 26]
    stp x28, x29, [x1, #8 * 28]
    str x30, [x1, #8 * 30]
    mrs x2, tpidrro_el0
    mrs x3, tpidr_el0
    stp x2, x3, [x1]
    mrs x2, sp_el0
    cmp x0, #4                      // on SP_EL1 itself?
    b.lo 1f
    mov x2, sp
1:  mrs x3, elr_el1
    stp x2, x3, [x1, #8 * 32]
    mrs x2, spsr_el1
    mrs x3, esr_el1
    stp x2, x3, [x1, #8 * 34]
    mrs x2, far_el1
    str x2, [x1, #8 * 36]
    ldr x2, [x1, #(CORE_FAULT_STACK_TOP - CORE_FAULT)]
    mov sp, x2
    mov x29, xzr
    mov x30, xzr
    b glass_exception
    .size exception, . - exception

// By four: on SP_EL0, on SP_EL1, from EL0 in 64 bits, in 32 bits; in each: synchronous, IRQ, FIQ, SError.
    .balign 2048
    .type vectors, %function
vectors:
    number = 0
    .rept 16
    .balign 128
    msr tpidrro_el0, x0
    msr tpidr_el0, x1
    mov x0, #number
    b exception
    number = number + 1
    .endr
    .size vectors, . - vectors

// Tables for the time until paging.rs has built the real ones: 1 GiB of devices and 3 GiB of memory, one to one. The entries are not
// global, and those of the real tables have another address space identifier, so neither is taken for the other.
    .section .data.boot, "aw"
    .balign 4096
boot_tables:
    .quad boot_directory + 3
    .fill 511, 8, 0
boot_directory:
    .quad 0x0060000000000c05
    .quad 0x0000000040000f01
    .quad 0x0000000080000f01
    .quad 0x00000000c0000f01
    .fill 508, 8, 0
    .globl glass_entry_ticks, glass_page_tables
glass_entry_ticks: .quad 0
glass_page_tables: .quad 0          // of secondary cores, written by processor.rs

    .section .bss.boot, "aw", %nobits
    .balign 4096
    .globl glass_stack_guard, glass_stack_top, glass_fault_stack_guard, glass_fault_stack_top
glass_stack_guard: .skip 4096       // unmapped by start.rs
    .skip 262144
glass_stack_top:
glass_fault_stack_guard: .skip 4096
    .skip 16384
glass_fault_stack_top:
    .text
