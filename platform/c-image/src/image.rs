//! The program in the image's memory, and the service that runs it.

extern crate alloc;

use alloc::boxed::Box;
use core::error::Error;
use glass_platform_vm::{VmPlatform, run_program};

/// By this `glass run` recognizes the image.
#[used]
static MARK: [u8; glass_formats::C_PROGRAM_MARK.len()] = *glass_formats::C_PROGRAM_MARK;

/// The program's pages are mapped where they are in the image.
#[repr(C, align(4096))]
struct Pages<B: ?Sized>(B);

static PROGRAM: &Pages<[u8]> = &Pages(*include_bytes!(env!("GLASS_PROGRAM")));

glass_platform_vm::entry!(serve);

async fn serve(platform: VmPlatform) -> Result<(), Box<dyn Error>> {
    run_program(platform, &PROGRAM.0).await
}
