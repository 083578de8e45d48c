// C programs: the way into one, out of one, and from its system calls to Rust (program/mod.rs). Ring 0 only changes the stack here.

    .section .boot, "ax"
// A program has executed `syscall`: rcx = where it continues, rsp = its stack, below which its red zone may be in use. On hosts that
// emulate ring 0, SYSRET is refused afterwards; so this leaves by IRETQ, and rings are not changed on the way back.
    .globl glass_system_call_entry
    .type glass_system_call_entry, @function
glass_system_call_entry:
    movq %rsp, %gs:CORE_PROGRAM_STACK
    movq %gs:CORE_RING0_STACK_TOP, %rsp
    pushq $USER_DATA
    pushq %gs:CORE_KERNEL_STACK
    pushq $2
    pushq $USER_CODE
    pushq $system_call_ring3
    iretq
    .size glass_system_call_entry, . - glass_system_call_entry

    .text
// Ring 3, behind the frame of `glass_program_enter`: all registers are the program's but rsp. It finds them unchanged but rax, rcx, r11.
    .type system_call_ring3, @function
system_call_ring3:
    pushq %rcx
    pushq %rdi
    pushq %rsi
    pushq %rdx
    pushq %r10
    pushq %r8
    pushq %r9
    pushq %rax
    subq $256, %rsp
    register = 0
    .irp name, 0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15
    movaps %xmm\name, register(%rsp)
    register = register + 16
    .endr
    leaq 256(%rsp), %rdi
    call glass_system_call
    register = 0
    .irp name, 0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15
    movaps register(%rsp), %xmm\name
    register = register + 16
    .endr
    addq $264, %rsp
    popq %r9
    popq %r8
    popq %r10
    popq %rdx
    popq %rsi
    popq %rdi
    popq %rcx
    movq %gs:CORE_PROGRAM_STACK, %rsp
    jmpq *%rcx
    .size system_call_ring3, . - system_call_ring3

// Starts a program: rdi = its entry, rsi = its stack. Returns what `glass_program_leave` gets.
    .globl glass_program_enter
    .type glass_program_enter, @function
glass_program_enter:
    pushq %rbp
    movq %rsp, %rbp
    pushq %rbx
    pushq %r12
    pushq %r13
    pushq %r14
    pushq %r15
    subq $8, %rsp
    movq %rsp, %gs:CORE_KERNEL_STACK
    fninit
    ldmxcsr initial_mxcsr(%rip)
    movq %rsi, %rsp
    xorl %ebp, %ebp
    xorl %edx, %edx                 // no function to call at its end
    jmpq *%rdi
    .size glass_program_enter, . - glass_program_enter

// Ends the program that runs on this core: rdi = what `glass_program_enter` returns.
    .globl glass_program_leave
    .type glass_program_leave, @function
glass_program_leave:
    movq %gs:CORE_KERNEL_STACK, %rsp
    movq %rdi, %rax
    fninit
    ldmxcsr initial_mxcsr(%rip)
    cld
    addq $8, %rsp
    popq %r15
    popq %r14
    popq %r13
    popq %r12
    popq %rbx
    popq %rbp
    ret
    .size glass_program_leave, . - glass_program_leave

    .section .rodata.program, "a"
    .align 4
initial_mxcsr: .long 0x1f80         // all exceptions masked, as after a reset
    .text
