//! The service as a program; the library has everything.
#![cfg_attr(glass_vm, no_std, no_main)]
#![forbid(unsafe_code)]
glasshouse::main!(my_service::serve);
