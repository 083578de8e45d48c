//! The code that depends on the guest's processor: the registers of each backend, and their meaning.

pub(crate) mod x86_64;
