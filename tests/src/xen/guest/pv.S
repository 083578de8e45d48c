# A paravirtualized guest's entry, and the notes by which Xen's tools load it. Its page tables are those of the tools, of 4 KiB
# pages.
    .macro note type:req, value:vararg
    .align 4
    .long 4, 2f - 1f, \type
    .asciz "Xen"
1:  \value
2:  .align 4
    .endm

    .section .note.Xen, "a", @note
    note 6, .asciz "glass"      # XEN_ELFNOTE_GUEST_OS
    note 5, .asciz "xen-3.0"    # XEN_VERSION
    note 8, .asciz "generic"    # LOADER
    note 3, .quad 0             # VIRT_BASE
    note 4, .quad 0             # PADDR_OFFSET
    note 1, .quad entry         # ENTRY
    note 9, .asciz "yes"        # PAE_MODE

    .section .text.entry, "ax"
    .globl entry
entry:
    cld
    movabsq $stack_top, %rsp
    xorl %ebp, %ebp
    pushq $0                    # a return address of 0 ends every call chain
    jmp run

    .bss
    .align 4096
    .skip 65536
stack_top:
    .section .note.GNU-stack, "", @progbits
