//! Uses pages that nothing has used since the service started: reads some, and writes to others, each by a function of its own.

use core::hint::black_box;
use glasshouse::{Buf, Error, Listener, Net, Platform, Port, Stream};

const PAGE_BYTES: usize = 4096;
/// Pages that are read, and pages that are written.
const READ: usize = 40;
const WRITTEN: usize = 60;

/// Uses all of them for each client, and then sends a line.
pub async fn serve(platform: &impl Platform) -> Result<(), Error> {
    let mut listener = platform.net().listen(Port::Tcp(8080)).await?;
    let (mut read, mut written) = (Buf::zeroed(READ * PAGE_BYTES)?, Buf::zeroed(WRITTEN * PAGE_BYTES)?);
    // None is a page of zeroes.
    for buf in [&mut read, &mut written] {
        buf.as_mut().ok_or("it has one owner")?.fill(1);
    }
    platform.net().up().await?;
    platform.print(format_args!("listening"));
    loop {
        let Ok(mut stream) = listener.accept().await else { continue };
        let sum = read_pages(&read);
        write_pages(written.as_mut().ok_or("it has one owner")?);
        let line = alloc::format!("{sum}\n");
        // A client that has gone needs none.
        if stream.write_all(line.as_bytes()).await.is_ok() {
            let _ = stream.close().await;
        }
    }
}

/// The sum of the first byte of each page.
#[inline(never)]
fn read_pages(pages: &[u8]) -> u32 {
    pages.iter().step_by(PAGE_BYTES).map(|byte| u32::from(*black_box(byte))).sum()
}

/// Writes to each page.
#[inline(never)]
fn write_pages(pages: &mut [u8]) {
    for byte in pages.iter_mut().step_by(PAGE_BYTES) {
        *black_box(byte) = 2;
    }
}
