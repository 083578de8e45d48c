// From the VMM's 32-bit PVH entry to Rust in ring 3, and the few services that need ring 0.
//
// Everything above this file runs in ring 3 with interrupts off, for ever. Reasons: docs/decisions/0002.
// Some hosts emulate guest ring 0 at 0.6 us an instruction, so the tables are assembled, not built.

    .set STUBS, 0x200000            // vm.ld puts .boot.stubs here; the IDT below needs numbers
    .set KERNEL_CODE, 0x08
    .set USER_DATA, 0x2b            // 0x2b and 0x33 are what hosts that switch rings natively expect
    .set USER_CODE, 0x33
    .set MSR_EFER, 0xc0000080
    .set MSR_GS_BASE, 0xc0000101
    .set KERNEL_DATA, 0x10
    .set KERNEL_CODE_32, 0x18
    .set TASK_STATE, 0x38

// Offsets in a core's block, at %gs: cores.rs, Core.
    .set CORE_RING0_STACK_TOP, 24
    .set CORE_STACK_TOP, 32
    .set CORE_FAULT_STACK_TOP, 40
    .set CORE_SEGMENTS_POINTER, 48
    .set CORE_FAULT, 64
    .set CORE_KERNEL_STACK, 240
    .set CORE_PROGRAM_STACK, 248

// PVH: an ELF note of type 18 (XEN_ELFNOTE_PHYS32_ENTRY) names the entry point.
    .section .note.pvh, "a", @note
    .align 4
    .long 4, 4, 18
    .asciz "Xen"
    .long glass_pvh_entry

// The mark of our images: formats/src/lib.rs, NOTE_NAME and CONTRACT_VERSION.
    .section .note.glasshouse, "a", @note
    .align 4
    .long 11, 4, 1
    .asciz "Glasshouse"
    .align 4
    .long 1

// One 16-byte stub a vector. All gates lead to ring 0 on the TSS's stack, so neither a red zone nor
// a broken ring-3 stack matters. Vectors from 32 on count only inside the idle service.
    .section .boot.stubs, "ax"
    .globl glass_vector_stubs
glass_vector_stubs:
    vector = 0
    .rept 256
    .align 16
    .if vector == 4
    jmp glass_service
    .elseif vector < 32
    .if !((vector == 8) || (vector >= 10 && vector <= 14) || (vector == 17) || (vector == 21) || (vector == 29) || (vector == 30))
    pushq $0                        // no error code from the CPU
    .endif
    pushq $vector
    jmp exception
    .else
    pushq $vector
    jmp wake
    .endif
    vector = vector + 1
    .endr

    .section .boot, "ax"
// An interrupt hit the halted idle service: drop its frame, return to ring 3 with the vector in eax. At any other place interrupts are off:
// one that arrives there is a second delivery by an emulator (QEMU 7.2 repeats what Xen injects), and is ignored.
    .type wake, @function
wake:                               // stack: vector, rip, cs, rflags, rsp, ss
    cmpq $.Lidle_halted, 8(%rsp)
    jne 2f
1:  popq %rax
    movq 24(%rsp), %rsp
    iretq
2:  cmpq $.Lidle_halted - 1, 8(%rsp)
    je 1b                           // in front of `hlt`, which would wait for another one
    addq $8, %rsp
    iretq
    .size wake, . - wake

// Ring-0 services: `int 4` with the number in r8. (`int 3` stays with debuggers.)
//   0 idle: halts until an interrupt; eax = its vector. IF was 0 until here, so an interrupt raised
//     after the caller's last look at its queues is latched in the local APIC and ends the halt.
//   1 wrmsr: ecx, edx:eax
//   2 cpuid: eax, ecx -> eax, esi (ebx), ecx, edx, as the VMM defines it (ring 3 may see the host's)
//   3 load page tables: rax
//   4, 5 hypercall of Xen, on Intel and on AMD: rax, rdi, rsi, rdx -> rax; Xen refuses ring 3 (xen/hypercall.rs)
    .globl glass_service
    .type glass_service, @function
glass_service:
    testl %r8d, %r8d
    jnz 1f
    .globl glass_idle_halt
glass_idle_halt:
    sti
    hlt
.Lidle_halted:
    iretq
1:  cmpl $2, %r8d
    ja 3f
    je 2f
    wrmsr
    iretq
2:  xchgq %rbx, %rsi
    cpuid
    xchgq %rbx, %rsi
    iretq
3:  cmpl $4, %r8d
    ja 5f
    je 4f
    movq %rax, %cr3
    iretq
4:  vmcall
    iretq
5:  vmmcall
    iretq
    .size glass_service, . - glass_service

// An exception: save what the report needs (layout: report.rs, Fault), go on in ring 3 on a stack of its own.
    .type exception, @function
exception:                          // stack: vector, error code, rip, cs, rflags, rsp, ss
    movq %rax, %gs:CORE_FAULT+0
    movq %rbx, %gs:CORE_FAULT+8
    movq %rcx, %gs:CORE_FAULT+16
    movq %rdx, %gs:CORE_FAULT+24
    movq %rsi, %gs:CORE_FAULT+32
    movq %rdi, %gs:CORE_FAULT+40
    movq %rbp, %gs:CORE_FAULT+48
    movq %r8, %gs:CORE_FAULT+56
    movq %r9, %gs:CORE_FAULT+64
    movq %r10, %gs:CORE_FAULT+72
    movq %r11, %gs:CORE_FAULT+80
    movq %r12, %gs:CORE_FAULT+88
    movq %r13, %gs:CORE_FAULT+96
    movq %r14, %gs:CORE_FAULT+104
    movq %r15, %gs:CORE_FAULT+112
    popq %gs:CORE_FAULT+120         // vector
    popq %gs:CORE_FAULT+128         // error code
    popq %gs:CORE_FAULT+136         // rip
    popq %gs:CORE_FAULT+144         // cs
    popq %gs:CORE_FAULT+152         // rflags
    popq %gs:CORE_FAULT+160         // rsp
    movq %cr2, %rax
    movq %rax, %gs:CORE_FAULT+168
    movq %gs:CORE_FAULT_STACK_TOP, %rax
    subq $8, %rax
    pushq $USER_DATA
    pushq %rax
    pushq $2
    pushq $USER_CODE
    pushq $glass_exception
    iretq
    .size exception, . - exception

    .code32
    .globl glass_pvh_entry
    .type glass_pvh_entry, @function
glass_pvh_entry:                    // ebx = address of hvm_start_info
    cli
    cld
    rdtsc
    movl %eax, glass_entry_ticks
    movl %edx, glass_entry_ticks+4
    movl $0x620, %eax               // CR4: PAE, OSFXSR, OSXMMEXCPT
    movl %eax, %cr4
    movl $boot_pml4, %eax
    movl %eax, %cr3
    movl $MSR_EFER, %ecx
    xorl %edx, %edx
    movl $0x900, %eax               // LME, NXE
    wrmsr
    movl $0x80050033, %eax          // CR0: PG AM WP NE ET MP PE
    movl %eax, %cr0
    lgdt gdt_pointer
    ljmpl $KERNEL_CODE, $enter64
    .size glass_pvh_entry, . - glass_pvh_entry

    .code64
    .type enter64, @function
enter64:
    xorl %eax, %eax
    movl %eax, %ds
    movl %eax, %es
    movl %eax, %ss
    movl %eax, %fs
    movl %eax, %gs
    movl $ring0_stack_top, %esp
    movl $tss, %eax                 // the address is below 4 GiB
    movq $ring0_stack_top, 4(%rax)  // RSP0
    movw $104, 102(%rax)            // the I/O bitmap follows: all zero, every port is ring 3's
    movw $104 + 8192, gdt_tss
    movw %ax, gdt_tss+2
    shrl $16, %eax
    movb %al, gdt_tss+4
    movb $0x89, gdt_tss+5
    movb %ah, gdt_tss+7
    movl $gdt_tss - gdt, %eax
    ltr %ax
    lidt idt_pointer
    movl $MSR_GS_BASE, %ecx         // %gs:0 is this core's block
    movl $GLASS_BOOT_CORE, %eax
    xorl %edx, %edx
    wrmsr
    pushq $USER_DATA
    pushq $glass_stack_top
    pushq $2                        // IF = 0
    pushq $USER_CODE
    pushq $enter_ring3
    iretq
    .size enter64, . - enter64

    .type enter_ring3, @function
enter_ring3:
    movl %ebx, %edi
    xorl %ebp, %ebp
    pushq $0                        // return address 0 ends every call chain
    jmp glass_start
    .size enter_ring3, . - enter_ring3

// A secondary core comes from the trampoline, in 32-bit mode without paging: the same, with what smp.rs has prepared for it.
    .code32
    .type core_enter32, @function
core_enter32:
    movl $KERNEL_DATA, %eax
    movl %eax, %ds
    movl %eax, %ss
    movl $0x620, %eax
    movl %eax, %cr4
    movl glass_page_tables, %eax
    movl %eax, %cr3
    movl $MSR_EFER, %ecx
    xorl %edx, %edx
    movl $0x900, %eax
    wrmsr
    movl $0x80050033, %eax
    movl %eax, %cr0
    ljmpl $KERNEL_CODE, $core_enter64
    .size core_enter32, . - core_enter32

    .code64
    .type core_enter64, @function
core_enter64:
    xorl %eax, %eax
    movl %eax, %ds
    movl %eax, %es
    movl %eax, %ss
    movl %eax, %fs
    movl %eax, %gs
    movl $1, %eax
    cpuid                           // ebx: bits 24 to 31 identify the local APIC
    shrl $24, %ebx
    movzbl glass_core_numbers(%rbx), %ebx
    movq GLASS_CORE_BLOCKS(,%rbx,8), %rdi
    testl %ebx, %ebx
    jz 1f
    movq CORE_RING0_STACK_TOP(%rdi), %rsp
    lgdt CORE_SEGMENTS_POINTER(%rdi)
    movl $TASK_STATE, %eax
    ltr %ax
    lidt idt_pointer
    movl $MSR_GS_BASE, %ecx
    movl %edi, %eax
    movq %rdi, %rdx
    shrq $32, %rdx
    wrmsr
    pushq $USER_DATA
    pushq CORE_STACK_TOP(%rdi)
    pushq $2
    pushq $USER_CODE
    pushq $core_enter_ring3
    iretq
1:  hlt                             // a core that smp.rs did not request
    jmp 1b
    .size core_enter64, . - core_enter64

    .type core_enter_ring3, @function
core_enter_ring3:
    xorl %ebp, %ebp
    pushq $0
    jmp glass_core_start
    .size core_enter_ring3, . - core_enter_ring3

// Copied to a page of low memory, where a core starts in 16-bit mode with CS there.
    .section .rodata.trampoline, "a"
    .globl glass_trampoline, glass_trampoline_end
    .code16
glass_trampoline:
    cli
    lgdtl %cs:(trampoline_gdt - glass_trampoline)
    movl $0x11, %eax                // CR0: ET PE
    movl %eax, %cr0
    ljmpl $KERNEL_CODE_32, $core_enter32
trampoline_gdt:
    .word gdt_end - gdt - 1
    .long gdt
glass_trampoline_end:
    .code64

// Tables for the time until paging.rs has built the real ones: 4 GiB one to one, all writable.
    .section .data.boot, "aw"
    .align 4096
boot_pml4: .quad boot_pdpt + 7
    .fill 511, 8, 0
boot_pdpt: .quad boot_pd + 7, boot_pd + 0x1007, boot_pd + 0x2007, boot_pd + 0x3007
    .fill 508, 8, 0
boot_pd:
    page = 0
    .rept 2048
    .quad page + 0x87               // present, writable, user, 2 MiB
    page = page + 0x200000
    .endr
idt:
    vector = 0
    .rept 256
    .word (STUBS + 16 * vector) & 0xffff, KERNEL_CODE
    .byte 0
    .if (vector == 3) || (vector == 4)
    .byte 0xee                      // ring 3 may call it
    .else
    .byte 0x8e
    .endif
    .word (STUBS + 16 * vector) >> 16
    .quad 0
    vector = vector + 1
    .endr
gdt:
    .quad 0
    .quad 0x00af9b000000ffff        // 08: ring-0 code
    .quad 0x00cf93000000ffff        // 10: ring-0 data
    .quad 0x00cf9b000000ffff        // 18: ring-0 code of 32 bits, on the way of a secondary core
    .quad 0
    .quad 0x00cff3000000ffff        // 28: ring-3 data
    .quad 0x00affb000000ffff        // 30: ring-3 code
gdt_tss:
    .quad 0, 0
gdt_end:
gdt_pointer:
    .word gdt_end - gdt - 1
    .quad gdt
idt_pointer:
    .word 4095
    .quad idt
    .align 8
    .globl glass_entry_ticks
glass_entry_ticks: .quad 0

    .section .bss.boot, "aw", @nobits
    .align 4096
    .globl glass_stack_guard, glass_stack_top, glass_fault_stack_guard, glass_fault_stack_top
    .globl glass_page_tables, glass_core_numbers
glass_stack_guard: .skip 4096       // unmapped by paging.rs
    .skip 262144
glass_stack_top:
glass_fault_stack_guard: .skip 4096
    .skip 16384
glass_fault_stack_top:
    .skip 4096
ring0_stack_top:
tss: .skip 104 + 8192 + 8
glass_page_tables: .skip 8          // of secondary cores, written by smp.rs
glass_core_numbers: .skip 256       // by identifier of the local APIC, 0 for none
    .text
