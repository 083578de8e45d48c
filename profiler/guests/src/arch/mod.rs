//! What depends on the guest's processor: where each way of looking finds its registers, and what they say.

pub(crate) mod x86_64;
