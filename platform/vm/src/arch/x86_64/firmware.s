// The firmware of our images for QEMU's microvm: from the processor's reset to the PVH entry, with what QEMU's firmware configuration device
// has (docs/specs/fw_cfg.rst of QEMU). It takes some 1,500 instructions, which a host that emulates guest ring 0 notices.
//
// `glass run` reads this section from the image and gives it to QEMU as the end of a ROM that ends at 4 GiB. It is not linked there, so all
// addresses are computed. Checksums of ACPI's tables are not: machine/acpi.rs, their only reader, does not check them.

    .set ROM_BYTES, 1024
    .set ROM, 0x100000000 - ROM_BYTES           // where its first byte is
    .set ROM_OFFSET, 0x10000 - ROM_BYTES        // in the 64 KiB that CS has after a reset

    .set CODE, 0x08
    .set DATA, 0x10

// The device: commands go to it in memory, all numbers big-endian.
    .set COMMAND_PORT, 0x518
    .set READ, 1 << 1 | 1 << 3                  // with the key of an item in the upper half
    .set ENTRY, 0x10 << 16
    .set COMMAND_LINE_BYTES, 0x14 << 16
    .set COMMAND_LINE, 0x15 << 16
    .set DIRECTORY, 0x19 << 16
    .set DIRECTORY_ENTRY, 64                    // bytes: u32 of bytes, u16 of its key, u16, the name
    .set NAME_BYTES, 16                         // as many as differ

// Memory below the image, which nothing else uses: some for the time until the entry, and what stays.
    .set STACK_TOP, 0x7000
    .set SCRATCH, 0x10000
    .set SCRATCH_BYTES, 0x8000
    .set SCRIPT, 0x18000
    .set PLACED, 0x20000                        // for each of ACPI's files its name and where it was placed
    .set PLACED_ENTRY, 32
    .set LINE, 0x30000                          // the command line
    .set LINE_BYTES, 0x60000
    .set TABLES, 0xa0000                        // ACPI's files
    .set TABLES_END, 0xef000
    .set REQUEST, 0xef000
    .set START_INFO, 0xef040
    .set USED, 0xef0fc                          // ZEROES once memory was used: it keeps what is in it at a reset
    .set MAP, 0xef100                           // of memory, an entry has 24 bytes
    .set ZEROES, 0x4f52455a                     // "ZERO": pvh.rs, RAM_IS_ZERO
    .set LOW_BYTES, 0x9f000                     // RAM from 0 on that is reported

    .section .firmware, "", @progbits
.Lfirmware:
    .code32
.Lenter32:
    movl $DATA, %eax
    movl %eax, %ds
    movl %eax, %es
    movl %eax, %ss
    movl $STACK_TOP, %esp
    xorl %ebp, %ebp                             // entries of PLACED
    movl $DIRECTORY | READ, %eax
    movl $SCRATCH, %edi
    movl $SCRATCH_BYTES, %ecx
    call .Lread

    movl $ROM + .Lloader - .Lfirmware, %esi
    call .Lfind
    jc .Lmemory_map
    movl $SCRIPT, %edi
    pushl %ecx
    call .Lread
    popl %ecx
    movl $SCRIPT, %esi
    leal (%esi,%ecx), %ebx
    movl $TABLES, %edx                          // the next free address

// The loader's script: entries of 128 bytes with a command and its operands.
.Lscript:
    cmpl %ebx, %esi
    jae .Lscript_end
    movl (%esi), %eax
    decl %eax
    je .Lallocate
    decl %eax
    je .Ladd_pointer
.Lnext:
    subl $-128, %esi
    jmp .Lscript

// Name of a file (56 bytes), alignment: reads the file to a place of its own.
.Lallocate:
    pushl %esi
    addl $4, %esi
    call .Lfind
    popl %esi
    jc .Lnext
    movl 60(%esi), %edi
    decl %edi
    addl %edi, %edx
    notl %edi
    andl %edi, %edx
    movl %ebp, %edi
    shll $5, %edi
    addl $PLACED, %edi
    pushl %esi
    pushl %ecx
    addl $4, %esi
    movl $NAME_BYTES / 4, %ecx
    rep movsl
    popl %ecx
    popl %esi
    movl %edx, (%edi)
    incl %ebp
    movl %edx, %edi
    addl %ecx, %edx
    cmpl $TABLES_END, %edx
    ja .Lno_room
    pushl %edx
    call .Lread
    popl %edx
    jmp .Lnext

// Name of a file, name of another, offset and size of a number in the first: adds where the other is.
.Ladd_pointer:
    pushl %esi
    addl $4, %esi
    call .Lplace
    movl %eax, %edi
    addl $56, %esi
    call .Lplace
    popl %esi
    testl %edi, %edi
    jz .Lnext
    addl 116(%esi), %edi
    addl %eax, (%edi)
    cmpb $8, 120(%esi)
    jne .Lnext
    adcl $0, 4(%edi)
    jmp .Lnext
.Lscript_end:

// The map of memory: entries of 20 bytes (u64 of the address, u64 of bytes, u32 of the kind) become ones of 24.
.Lmemory_map:
    movl $MAP, %edi
    movl $ROM + .Lmap - .Lfirmware, %esi
    call .Lfind
    jc .Lmap_end
    pushl %edi
    movl $SCRIPT, %edi
    pushl %ecx
    call .Lread
    popl %ecx
    popl %edi
    movl $SCRIPT, %esi
    leal (%esi,%ecx), %ebx
.Lmap_entry:
    cmpl %ebx, %esi
    jae .Lmap_end
    movl (%esi), %eax
    orl 4(%esi), %eax
    jnz 1f
    // RAM from 0 on has a hole for what is here.
    movl $LOW_BYTES, 8(%edi)
    movl $1, 16(%edi)
    addl $24, %edi
    movl $0x100000, (%esi)
    subl $0x100000, 8(%esi)
    sbbl $0, 12(%esi)
1:  movl $5, %ecx
    rep movsl
    addl $4, %edi
    jmp .Lmap_entry
.Lmap_end:
    movl $START_INFO, %ebx
    movl $0x336ec578, (%ebx)                    // magic
    movl $1, 4(%ebx)                            // version
    movl $LINE, 24(%ebx)
    movl $MAP, 40(%ebx)
    movl %edi, %eax
    subl $MAP, %eax
    xorl %edx, %edx
    movl $24, %ecx
    divl %ecx
    movl %eax, 48(%ebx)
    movl $ROM + .Lrsdp - .Lfirmware, %esi
    call .Lplace
    movl %eax, 32(%ebx)
// QEMU starts with memory that is zero. All that is written here lies below the image.
    movl $ZEROES, %eax
    xchgl %eax, USED
    subl $ZEROES, %eax
    je 1f
    movl $ZEROES, %eax
1:  movl %eax, 52(%ebx)                         // of the start info a reserved word

    movl $COMMAND_LINE_BYTES | READ, %eax
    movl $SCRATCH, %edi
    movl $4, %ecx
    call .Lread
    movl SCRATCH, %ecx
    cmpl $LINE_BYTES, %ecx
    ja .Lno_room
    movl $COMMAND_LINE | READ, %eax
    movl $LINE, %edi
    call .Lread
    movl $ENTRY | READ, %eax
    movl $SCRATCH, %edi
    movl $4, %ecx
    call .Lread
    jmp *SCRATCH

// Reads %ecx bytes of the item with the command %eax to %edi. Changes %eax, %ecx, %edx.
.Lread:
    bswapl %eax
    movl %eax, REQUEST
    bswapl %ecx
    movl %ecx, REQUEST + 4
    movl $0, REQUEST + 8
    movl %edi, %eax
    bswapl %eax
    movl %eax, REQUEST + 12
    movl $REQUEST, %eax
    bswapl %eax
    movl $COMMAND_PORT, %edx
    outl %eax, %dx
1:  movl REQUEST, %eax                          // 0 when it is done
    testl %eax, %eax
    jnz 1b
    ret

// The file with the name at %esi: the command that reads it in %eax, its bytes in %ecx; or the carry flag. Changes %eax, %ecx.
.Lfind:
    pushl %edi
    pushl %edx
    movl SCRATCH, %edx                          // how many there are
    bswapl %edx
    movl $SCRATCH + 4, %edi
1:  decl %edx
    js 2f
    leal 8(%edi), %eax
    call .Lsame
    je 3f
    addl $DIRECTORY_ENTRY, %edi
    jmp 1b
2:  stc
    jmp 4f
3:  movl (%edi), %ecx
    bswapl %ecx
    movl 4(%edi), %eax
    bswapl %eax
    movw $READ, %ax
    clc
4:  popl %edx
    popl %edi
    ret

// Where the file with the name at %esi was placed, in %eax; 0 if it was not.
.Lplace:
    pushl %edx
    movl %ebp, %edx
    movl $PLACED, %eax
1:  decl %edx
    js 2f
    call .Lsame
    je 3f
    addl $PLACED_ENTRY, %eax
    jmp 1b
2:  xorl %eax, %eax
    popl %edx
    ret
3:  movl NAME_BYTES(%eax), %eax
    popl %edx
    ret

// Compares the names at %esi and %eax. Those of QEMU differ in the third or fourth word, except where they are equal.
.Lsame:
    pushl %ecx
    movl 12(%esi), %ecx
    cmpl 12(%eax), %ecx
    jne 1f
    movl 8(%esi), %ecx
    cmpl 8(%eax), %ecx
    jne 1f
    movl 4(%esi), %ecx
    cmpl 4(%eax), %ecx
1:  popl %ecx
    ret

.Lno_room:
    movl $ROM + .Lmessage - .Lfirmware, %esi
    movl $.Lmessage_end - .Lmessage, %ecx
    movl $0x3f8, %edx
    rep outsb
1:  hlt
    jmp 1b

.Lmessage: .ascii "glass: the command line or ACPI's tables are too long for the image's firmware: use --qemu-firmware\r\n"
.Lmessage_end:
.Lloader: .asciz "etc/table-loader"
.Lrsdp: .asciz "etc/acpi/rsdp\0\0"
.Lmap: .asciz "etc/e820\0\0\0\0\0\0\0"

    .align 8
.Lsegments:
    .quad 0
    .quad 0x00cf9b000000ffff                    // CODE
    .quad 0x00cf93000000ffff                    // DATA
.Lsegments_pointer:
    .word .Lsegments_pointer - .Lsegments - 1
    .long ROM + .Lsegments - .Lfirmware

    .code16
.Lenter16:
    cli
    cld
    lgdtl %cs:(ROM_OFFSET + .Lsegments_pointer - .Lfirmware)
    movl $0x11, %eax                            // CR0: ET PE
    movl %eax, %cr0
    ljmpl $CODE, $ROM + .Lenter32 - .Lfirmware
    .org ROM_BYTES - 16
    jmp .Lenter16                                 // the processor's first instruction
    .org ROM_BYTES
    .code64
    .text
