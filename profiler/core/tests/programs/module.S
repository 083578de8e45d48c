// A module of a kernel: a function that another calls, in sections of their own, with ORC entries in no order.
    .macro orc place, offset, register, kind
    .section .orc_unwind_ip, "a"
    .long \place - .
    .section .orc_unwind, "a"
    .short \offset, 0
    .byte \register, \kind
    .endm

    .section .init.text, "ax"
begin:
    ret
begin_end:

    .text
    .globl outer
    .type outer, @function
outer:
    subq $8, %rsp
outer_call:
    call inner
outer_return:
    addq $8, %rsp
outer_last:
    ret
outer_end:
    .size outer, . - outer

    .section .text.second, "ax"
    .type inner, @function
inner:
    pushq %rbp
inner_body:
    nop
    popq %rbp
inner_last:
    ret
inner_end:
    .size inner, . - inner

    orc begin, 8, 5, 0
    orc inner_end, 0, 0, 0
    orc inner_last, 8, 5, 0
    orc outer_last, 8, 5, 0
    orc outer_call, 16, 5, 0
    orc inner, 8, 5, 0
    orc inner_body, 16, 5, 0
    orc outer, 8, 5, 0
    orc outer_end, 0, 0, 0
