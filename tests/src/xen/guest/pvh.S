# A PVH guest's way from its entry to run() in long mode. Addresses below 1 GiB, with SMALL_PAGES below 16 MiB, are mapped to
# themselves and, for the stacks, once more in the upper half.
    .section .note.Xen, "a", @note
    .align 4
    .long 4, 4, 18              # XEN_ELFNOTE_PHYS32_ENTRY
    .asciz "Xen"
    .align 4
    .long entry

    .section .text.entry, "ax"
    .code32
    .globl entry
entry:
    cli
#ifdef NARROW
    # Stays in 32 bits, with pages of 4 MiB.
    movl $0x10, %eax            # CR4: large pages
    movl %eax, %cr4
    movl $narrow, %eax
    movl %eax, %cr3
    movl $0x80010033, %eax
    movl %eax, %cr0
1:  incl %ecx
    jmp 1b
#endif
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
    movabsq $stack_top + 0xffff800000000000, %rsp
    xorl %ebp, %ebp
    pushq $0                    # a return address of 0 ends every call chain
    jmp run

    .data
    .align 4096
#ifdef NARROW
narrow: .long 0x83
    .fill 1023, 4, 0
#endif
    .globl level4
level4: .quad level3 + 3
    .fill 255, 8, 0
    .quad level3 + 3
    .fill 255, 8, 0
level3: .quad level2 + 3
    .fill 511, 8, 0
level2:
#ifdef SMALL_PAGES
    table = level1 + 3
    .rept 8
    .quad table
    table = table + 4096
    .endr
    .fill 504, 8, 0
level1:
    page = 3
    .rept 8 * 512
    .quad page
    page = page + 4096
    .endr
#else
    page = 0x83
    .rept 512
    .quad page
    page = page + 0x200000
    .endr
#endif
gdt: .quad 0, 0x00af9b000000ffff
gdt_pointer:
    .word 15
    .quad gdt

    .bss
    .globl other_stack_top
    .align 4096
    .skip 65536
stack_top:
    .skip 65536
other_stack_top:
    .section .note.GNU-stack, "", @progbits
