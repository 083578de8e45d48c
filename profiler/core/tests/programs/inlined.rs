//! Calls that are inlined, three deep.

#[inline(always)]
fn inner(value: u64) -> u64 {
    std::hint::black_box(value) * 3
}

#[inline(always)]
fn middle(value: u64) -> u64 {
    inner(value + 1)
}

#[inline(never)]
#[unsafe(no_mangle)]
fn outer(value: u64) -> u64 {
    middle(value) + 2
}

fn main() {
    std::process::exit(i32::from(outer(7) == 0));
}
