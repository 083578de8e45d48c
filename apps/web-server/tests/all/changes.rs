//! Files that change, or cannot be read, while they are served.

use crate::site::{Site, answers, content};
use core::time::Duration;
use glass_platform_sim::{SimFiles, for_seeds};
use glasshouse::{Clock, Net, Platform, Stream};

const BYTES: usize = 1 << 20;
const GET: &[u8] = b"GET /file HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n";

/// A client that reads slowly, and one that the host replaces its file for: in place or by a new one.
#[test]
fn a_response_is_one_version_or_is_cut() {
    let (mut whole, mut cut) = (0, 0);
    for_seeds(0..40, |seed| {
        let files = SimFiles::new(seed);
        files.put("file", &content(1, BYTES));
        let mut site = Site::new(seed, files.clone());
        let (net, client, to) = (site.client.net(), site.client.clone(), site.tcp());
        let replacing = site.server.clone();
        site.server.run("host", async move {
            replacing.sleep(Duration::from_micros(200 * (seed / 2))).await;
            if seed % 2 == 0 {
                files.overwrite("file", &content(2, BYTES))
            } else {
                files.put("file", &content(2, BYTES))
            }
        });
        let received = site.world.complete(&client, Duration::from_secs(60), async move {
            let mut stream = net.connect(to).await.unwrap();
            stream.write_all(GET).await.unwrap();
            let (mut all, mut part) = (Vec::new(), vec![0; 50_000]);
            loop {
                match stream.read(&mut part).await {
                    Ok(0) => return Ok(all),
                    Ok(count) => all.extend_from_slice(&part[..count]),
                    Err(error) => return Err(error),
                }
            }
        });
        match received.unwrap() {
            Ok(bytes) => {
                let answer = answers(&bytes, &["GET"]).remove(0);
                assert!(answer.status == 503 || answer.body == content(1, BYTES) || answer.body == content(2, BYTES));
                whole += 1;
            }
            Err(_) => cut += 1,
        }
    });
    assert!(whole > 0 && cut > 0, "{whole} whole, {cut} cut");
}

#[test]
fn files_that_fail_are_answered_503_or_cut_and_the_server_continues() {
    for_seeds(0..10, |seed| {
        let files = SimFiles::new(seed);
        files.put("file", &content(1, BYTES));
        let mut site = Site::new(seed, files.clone());
        files.fail_every(Some(2 + seed));
        let to = site.tcp();
        for _ in 0..5 {
            let text = String::from_utf8(GET.to_vec()).unwrap();
            if let Ok(bytes) = site.exchange(to, &text).unwrap() {
                let answer = answers(&bytes, &["GET"]).remove(0);
                assert!(answer.status == 503 || answer.body == content(1, BYTES), "{}", answer.status);
            }
        }
        files.fail_every(None);
        assert!(site.get("/file").body == content(1, BYTES));
    });
}
