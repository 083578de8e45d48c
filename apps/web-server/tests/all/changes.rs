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
            let mut stream = net.connect_to(to).await.unwrap();
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
        let received = received.unwrap();
        assert!(received.is_ok() || seed % 2 == 0, "seed {seed}: a file that was replaced was not sent to its end");
        match received {
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

/// What the host does to a file while it is downloaded.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Deploy {
    Replace,
    Remove,
    RenameAway,
}

#[test]
fn a_download_goes_to_its_end_while_its_file_is_replaced_a_hundred_times() {
    for (seed, how) in [Deploy::Replace, Deploy::Remove, Deploy::RenameAway].into_iter().enumerate() {
        for args in [&[][..], &["--cache", "8M"]] {
            let files = SimFiles::new(seed as u64);
            files.put("file", &content(1, BYTES));
            let mut site = Site::with(seed as u64, files.clone(), args);
            let (net, client, to) = (site.client.net(), site.client.clone(), site.tcp());
            let received = site.world.complete(&client, Duration::from_secs(60), async move {
                let mut stream = net.connect_to(to).await.unwrap();
                stream.write_all(GET).await.unwrap();
                let (mut all, mut part) = (Vec::new(), vec![0; 10_000]);
                loop {
                    let count = stream.read(&mut part).await.unwrap();
                    all.extend_from_slice(&part[..count]);
                    match how {
                        _ if count == 0 => return all,
                        Deploy::Replace => files.put("file", &content(2, BYTES)),
                        Deploy::Remove => files.remove("file"),
                        Deploy::RenameAway => files.move_file("file", "file.old"),
                    }
                }
            });
            let answer = answers(&received.unwrap(), &["GET"]).remove(0);
            assert!(answer.status == 200 && answer.body == content(1, BYTES), "{how:?} {args:?}: {}", answer.head);
        }
    }
}

/// As `cp --preserve=timestamps` over a file of the same time does.
#[test]
fn a_file_that_is_changed_in_place_under_its_old_time_is_cut() {
    let files = SimFiles::new(1);
    files.put("file", &content(1, BYTES));
    let mut site = Site::new(1, files.clone());
    let (net, client, to) = (site.client.net(), site.client.clone(), site.tcp());
    let received = site.world.complete(&client, Duration::from_secs(60), async move {
        let mut stream = net.connect_to(to).await.unwrap();
        stream.write_all(GET).await.unwrap();
        stream.read(&mut [0; 1000]).await.unwrap();
        files.overwrite_with_old_time("file", &content(2, BYTES));
        let mut part = vec![0; 10_000];
        loop {
            match stream.read(&mut part).await {
                Ok(0) => return true,
                Ok(_) => {}
                Err(_) => return false,
            }
        }
    });
    assert!(!received.unwrap(), "the response had two versions");
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
