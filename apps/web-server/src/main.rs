//! The web server as a program; the code is in the library.
#![cfg_attr(glass_vm, no_std, no_main)]
#![forbid(unsafe_code)]
glasshouse::main!(web_server::serve);
