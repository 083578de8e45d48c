# A bare guest's way from the PVH entry to main() in long mode. Addresses below 1 GiB are mapped to
# themselves and, for the stack, once more in the upper half.
    .section .note.pvh, "a", @note
    .align 4
    .long 4, 4, 18
    .asciz "Xen"
    .align 4
    .long entry

    .section .text.entry, "ax"
    .code32
    .globl entry, entry_other
entry:
    xorl %ebx, %ebx
entry_other:                    # where a VMM may start another core; EBX: its number
    cli
    movl %ebx, %edi
    movl %ebx, %esi
    shll $16, %esi
    addl $stack_top, %esi
    movl $0x620, %eax           # CR4: PAE and SSE
    movl %eax, %cr4
    movl $level4, %eax
    movl %eax, %cr3
    movl $0xc0000080, %ecx      # EFER: long mode
    xorl %edx, %edx
    movl $0x100, %eax
    wrmsr
    movl $0x80010033, %eax      # CR0: paging, write protection, FPU, protection
    movl %eax, %cr0
    lgdt gdt_pointer
    ljmpl $8, $long_mode

    .code64
long_mode:
    xorl %eax, %eax
    movl %eax, %ds
    movl %eax, %es
    movl %eax, %ss
    movl %edi, %edi             # upper halves are undefined after 32-bit code
    movl %esi, %esi
    movabsq $0xffff800000000000, %rsp
    addq %rsi, %rsp
    xorl %ebp, %ebp
    pushq $0                    # a return address of 0 ends every call chain
    jmp run

    .data
    .align 4096
level4: .quad level3 + 3
    .fill 255, 8, 0
    .quad level3 + 3
    .fill 255, 8, 0
level3: .quad level2 + 3
    .fill 511, 8, 0
level2:
    page = 0
    .rept 512
    .quad page + 0x83
    page = page + 0x200000
    .endr
gdt: .quad 0, 0x00af9b000000ffff
gdt_pointer:
    .word 15
    .quad gdt

    .bss
    .align 16
    .skip 65536
stack_top:
    .skip 65536 * 3             # the stacks of the other cores
