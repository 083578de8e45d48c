//! The end of the service is requested while clients use it.

use crate::common::site::{Site, content, put_head, put_request};
use core::time::Duration;
use glass_platform_sim::{LinkConfig, for_seeds};
use glasshouse::{Clock, Instant};
use upload_queue::limits::SHUTDOWN_WAIT;

const DISK_BYTES: u64 = 8 << 20;
const LENGTH: usize = 300_000;
const LIMIT: Duration = Duration::from_secs(600);

fn has_ended(site: &Site) -> bool {
    site.server.console().iter().any(|line| line == "upload-queue: ended")
}

fn cut(site: &Site) -> Option<String> {
    site.server.console().into_iter().find(|line| line.contains("were cut"))
}

#[test]
fn requests_in_flight_are_finished_and_no_other_begins() {
    for_seeds(0..20, |seed| {
        let mut site = Site::new(seed, DISK_BYTES, &[]);
        let server = site.server.clone();
        let data = content(seed, LENGTH);
        let sent = data.clone();
        let (rest, late, idle) = site.run(async move |client| {
            let mut uploader = client.connect().await;
            uploader.send(put_head(LENGTH)).await;
            uploader.send(&sent[..LENGTH / 2]).await;
            let mut waiting = client.connect().await;
            waiting.send("GET /downloader?wait=600 HTTP/1.1\r\nHost: q\r\n\r\n").await;
            // It has an answer and rests.
            let mut idle = client.connect().await;
            idle.send("GET /healthz HTTP/1.1\r\nHost: q\r\n\r\n").await;
            assert_eq!(idle.reply().await.status, 200);
            client.node.sleep(Duration::from_millis(500)).await;
            server.shut_down();
            assert_eq!(waiting.reply().await.status, 204, "who waits for an item is sent home");
            uploader.send(&sent[LENGTH / 2..]).await;
            let reply = uploader.reply().await;
            (
                (reply.status, reply.header("Connection").is_none_or(|value| value == "close"), uploader.ends().await),
                glasshouse::Net::connect(&glasshouse::Platform::net(&client.node), client.remote).await.is_err(),
                idle.ends().await,
            )
        });
        assert_eq!(rest, (200, true, true));
        assert!(late && idle, "a connection was accepted, or an idle one kept");
        site.world.run_until(LIMIT, || false).ok();
        assert!(has_ended(&site) && cut(&site).is_none(), "{:?}", site.server.console());
        // What was answered is there.
        let disk = site.disk.restart(seed);
        let mut again = Site::with_disk(seed, disk, LinkConfig::default(), &[]);
        let item = again.run(async |client| client.get().await);
        assert!(item.body == data);
    });
}

#[test]
fn a_client_that_stalls_is_cut_after_the_limit() {
    let mut site = Site::new(1, DISK_BYTES, &[]);
    let server = site.server.clone();
    let (asked, _stalled) = site.run(async move |client| {
        client.put(b"an item before").await;
        let mut stalled = client.connect().await;
        stalled.send(&put_request(&content(1, LENGTH))[..LENGTH / 2]).await;
        client.node.sleep(Duration::from_secs(1)).await;
        server.shut_down();
        (client.node.now(), stalled)
    });
    let console = site.server.clone();
    site.world.run_until(LIMIT, || console.console().iter().any(|line| line == "upload-queue: ended")).unwrap();
    let took = site.world.now() - asked;
    assert!((SHUTDOWN_WAIT..SHUTDOWN_WAIT + Duration::from_secs(1)).contains(&took), "{took:?}");
    assert_eq!(cut(&site).as_deref(), Some("upload-queue: 1 connections were cut: they took too long"));
    assert!(asked > Instant(0));
}

#[test]
fn without_clients_it_ends_at_once() {
    let mut site = Site::new(1, DISK_BYTES, &[]);
    let asked = site.world.now();
    site.server.shut_down();
    let console = site.server.clone();
    site.world.run_until(LIMIT, || console.console().iter().any(|line| line == "upload-queue: ended")).unwrap();
    assert_eq!(site.world.now(), asked);
}
