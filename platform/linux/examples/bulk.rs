//! Bodies without a disk, the upper bound of a service's throughput: discards the body of a PUT, and
//! answers `GET /BYTES` with so many zeros. `bulk --bind 127.0.0.1 -- 8080`
#![forbid(unsafe_code)]

use glass_api::{Listener, Net, Platform, Spawn, Stream};
use glass_lib_http::{Connection, HttpError, Limits, Method, Request, Response, Status};
use glass_platform_linux::LinuxPlatform;
use std::error::Error;
use std::process::ExitCode;

const PART_BYTES: usize = 256 * 1024;

fn main() -> ExitCode {
    glass_platform_linux::main("bulk", serve)
}

async fn serve(platform: LinuxPlatform) -> Result<(), Box<dyn Error>> {
    let port: u16 = platform.args().first().ok_or("give a port")?.parse()?;
    let mut listener = platform.net().listen(port).await?;
    loop {
        let Ok(stream) = listener.accept().await else { continue };
        let connection = Connection::new(stream, platform.clone(), Limits::default());
        platform.spawn("connection", async move { _ = connection.serve(answer).await })?;
    }
}

async fn answer<S: Stream>(connection: &mut Connection<S, LinuxPlatform>, request: Request) -> Result<(), HttpError> {
    let mut part = vec![0; PART_BYTES];
    if request.method() != Method::Get {
        while connection.read_body(&mut part).await? > 0 {}
        return connection.respond_text(Status::OK, "discarded\n").await;
    }
    let Ok(mut left) = request.path()[1..].parse::<u64>() else {
        return connection.respond_text(Status::NOT_FOUND, "request a number of bytes\n").await;
    };
    connection.start(Response::new(Status::OK), left).await?;
    while left > 0 {
        let count = left.min(PART_BYTES as u64);
        connection.write_body(&part[..count as usize]).await?;
        left -= count;
    }
    Ok(())
}
