//! The upload queue as a program; the code is in the library.
#![cfg_attr(glass_vm, no_std, no_main)]
#![forbid(unsafe_code)]
glasshouse::main!(upload_queue::serve);
