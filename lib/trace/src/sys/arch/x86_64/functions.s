// The recorder: what the sleds of traced functions call. Included by functions.rs, which defines `load_ring`.
//
// It is called where the compiler expects no call, so it preserves every register. It does not preserve flags: no
// function expects any from its caller or its callee. Nothing below the stack pointer is in use at a sled, so
// there is no red zone to respect. It calls nothing and has no sleds, so it cannot record itself.
//
// Each event is written as in Ring::push in formats/src/trace/ring.rs: words, then the head. On x86, stores are seen in
// their order, which suffices here.

    .set CONTROL_GROUPS, 128        // offset of Control::groups
    .set GROUP_FUNCTIONS, 1 << 6
    .set RING_HEAD, 0               // offsets in a RingEntry
    .set RING_ADDRESS, 8
    .set RING_CAPACITY, 16
    .set EVENT_SHIFT, 5             // 32 bytes

// `number`: where the function's number is, from the return address on. `kind`: glass_formats::trace::Kind.
    .macro recorder name, kind, number
    .globl \name
    .type \name, @function
\name:
    .cfi_startproc
    testb $GROUP_FUNCTIONS, GLASS_TRACE+CONTROL_GROUPS(%rip)
    jz 2f
    pushq %rcx
    .cfi_adjust_cfa_offset 8
    load_ring %rcx
    testq %rcx, %rcx
    jz 1f
    pushq %rax
    .cfi_adjust_cfa_offset 8
    pushq %rdx
    .cfi_adjust_cfa_offset 8
    pushq %rsi
    .cfi_adjust_cfa_offset 8
    movq RING_CAPACITY(%rcx), %rsi
    decq %rsi
    andq RING_HEAD(%rcx), %rsi
    shlq $EVENT_SHIFT, %rsi
    addq RING_ADDRESS(%rcx), %rsi
    rdtsc
    shlq $32, %rdx
    orq %rdx, %rax
    movq %rax, (%rsi)
    movq 32(%rsp), %rax             // the return address
    movzwl \number(%rax), %eax
    shlq $32, %rax
    orq $\kind, %rax
    movq %rax, 8(%rsi)
    movq $0, 16(%rsi)
    movq $0, 24(%rsi)
    incq RING_HEAD(%rcx)
    popq %rsi
    .cfi_adjust_cfa_offset -8
    popq %rdx
    .cfi_adjust_cfa_offset -8
    popq %rax
    .cfi_adjust_cfa_offset -8
1:  popq %rcx
    .cfi_adjust_cfa_offset -8
2:  ret
    .cfi_endproc
    .size \name, . - \name
    .endm

    .section .text.glass_functions, "ax", @progbits
    .align 64
    recorder glass_function_begins, 96, 2
    .align 64
    recorder glass_function_returns, 97, 1
    .align 64
    recorder glass_function_tail_calls, 98, 2
    .text
