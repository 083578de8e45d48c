//! Takes jobs by `POST /`, stores them, and works on them one after the other. A job whose request was answered is never lost; after a
//! power cut the last one may be done twice.
#![no_std]
#![forbid(unsafe_code)]

extern crate alloc;

use alloc::format;
use alloc::rc::Rc;
use core::pin::pin;
use core::time::Duration;
use glasshouse::future::{Either, select};
use glasshouse::http::{Connection, HttpError, Limits, Method, Request, Response, Status};
use glasshouse::store::{Log, Options, Store};
use glasshouse::sync::Notify;
use glasshouse::tracing::{Instrument, info_span, warn};
use glasshouse::{Block, Error, Listener, Net, Platform, Stream};

/// Bytes of a job.
const JOB_BYTES_MAX: usize = 4096;
/// How long the worker waits after an error.
const PAUSE: Duration = Duration::from_secs(1);

/// Serves until its end is requested.
pub async fn serve(platform: impl Platform) -> Result<(), Error> {
    let port = match platform.args() {
        [] => 8080,
        [option, port] if option == "--port" => port.parse().map_err(|_| format!("{port} is no port"))?,
        _ => return Err("the arguments are: [--port NUMBER]".into()),
    };
    let disk = platform.block(0).ok_or("there is no disk for the jobs: give one by --disk")?;
    let (store, recovery) = Store::open(disk, &platform, Options::default()).await?;
    platform.print(format_args!("{recovery}"));
    let (jobs, added) = (store.log("jobs")?, Rc::new(Notify::new()));
    platform.spawn("worker", work(platform.clone(), jobs.clone(), added.clone()))?;

    let address = platform.net().up().await?.address;
    let mut listener = platform.net().listen(port).await?;
    platform.print(format_args!("my-service listens on {address} {}", listener.port()));
    let mut shutdown = pin!(platform.shutdown());
    loop {
        match select(listener.accept(), shutdown.as_mut()).await {
            Either::First(Ok(stream)) => {
                let connection = Connection::new(stream, platform.clone(), Limits::default());
                let (jobs, added) = (jobs.clone(), added.clone());
                let handle = async move |connection: &mut _, request| answer(connection, request, &jobs, &added).await;
                // At the limit of tasks the connection is dropped, which resets it.
                let _ = platform.spawn("connection", async move { connection.serve(handle).await });
            }
            Either::First(Err(error)) => warn!("a connection was not accepted: {error}"),
            Either::Second(()) => return Ok(()),
        }
    }
}

async fn answer<S: Stream, P: Platform, B: Block>(
    connection: &mut Connection<S, P>,
    request: Request,
    jobs: &Log<B>,
    added: &Notify,
) -> Result<(), HttpError> {
    if request.method() != Method::Post {
        let refusal = Response::new(Status::METHOD_NOT_ALLOWED).header("Allow", "POST");
        return connection.respond(refusal, b"only POST is answered\n").await;
    }
    let mut job = [0; JOB_BYTES_MAX + 1];
    let count = connection.fill_from_body(&mut job).await?;
    if count > JOB_BYTES_MAX {
        return connection.respond_text(Status::PAYLOAD_TOO_LARGE, "a job has at most 4096 bytes\n").await;
    }
    match jobs.append(&job[..count]).await {
        Ok(number) => {
            added.notify_all();
            connection.respond_text(Status::OK, &format!("job {number}\n")).await
        }
        Err(error) => {
            warn!("a job was not stored: {error}");
            connection.respond_text(Status::INTERNAL_SERVER_ERROR, "not stored\n").await
        }
    }
}

/// Works on the oldest job, then removes it.
async fn work<P: Platform>(platform: P, jobs: Log<P::Block>, added: Rc<Notify>) {
    loop {
        let more = added.notified();
        let oldest = jobs.records(0).next().await;
        match oldest {
            Ok(Some((number, job))) => {
                do_job(&platform, number, &job).instrument(info_span!("job", number)).await;
                if let Err(error) = jobs.trim(number + 1).await {
                    warn!("job {number} was not removed: {error}");
                    platform.sleep(PAUSE).await;
                }
            }
            Ok(None) => more.await,
            Err(error) => {
                warn!("no job can be read: {error}");
                platform.sleep(PAUSE).await;
            }
        }
    }
}

async fn do_job(platform: &impl Platform, number: u64, job: &[u8]) {
    platform.print(format_args!("job {number} has {} bytes", job.len()));
}
