//! Reports what is each copy's own: its generation, the time, random words, and how many connections have failed.

use alloc::format;
use alloc::rc::Rc;
use alloc::string::String;
use core::cell::Cell;
use core::fmt::Write;
use glasshouse::{Error, Listener, Net, Platform, Port, Stream};

/// Random words of a report.
const WORDS: usize = 16;

/// Sends a report to each client, which may stay.
pub async fn serve(platform: &impl Platform) -> Result<(), Error> {
    let mut listener = platform.net().listen(Port::Tcp(8080)).await?;
    platform.net().up().await?;
    platform.print(format_args!("listening"));
    let failed = Rc::new(Cell::new(0));
    loop {
        let Ok(mut stream) = listener.accept().await else { continue };
        let report = report(platform, failed.get());
        let failed = failed.clone();
        platform.spawn("client", async move {
            let mut result = stream.write_all(report.as_bytes()).await.map(|()| 1);
            let mut byte = [0];
            while let Ok(1..) = result {
                result = stream.read(&mut byte).await;
            }
            match result {
                Ok(_) => _ = stream.close().await,
                Err(_) => failed.set(failed.get() + 1),
            }
        })?;
    }
}

fn report(platform: &impl Platform, failed: u32) -> String {
    let wall_us = platform.wall().map_or(0, |wall| wall.since_epoch.as_micros());
    let (generation, now_us) = (platform.generation(), platform.now().0 / 1000);
    let mut line = format!("{generation} {now_us} {wall_us} {failed}");
    for _ in 0..WORDS {
        let mut word = [0; 8];
        platform.fill_random(&mut word);
        // Writing to a string cannot fail.
        let _ = write!(line, " {}", u64::from_le_bytes(word));
    }
    line + "\n"
}
