//! The service in a simulation that loses its power.

use core::time::Duration;
use glass_platform_sim::{Chance, DiskConfig, Node, NodeConfig, SimBlock, World, for_seeds};
use glasshouse::{Net, NetError, Platform, Stream};
use std::cell::RefCell;
use std::collections::BTreeSet;
use std::rc::Rc;

const LIMIT: Duration = Duration::from_secs(3600);

struct Site {
    world: World,
    server: Node,
    client: Node,
}

fn site(seed: u64, disk: &SimBlock) -> Site {
    let mut world = World::new(seed);
    let server = world.node("server", NodeConfig { disks: vec![disk.clone()], ..NodeConfig::default() });
    let client = world.node("client", NodeConfig::default());
    server.run("service", my_service::serve(server.clone()));
    let console = server.clone();
    let is_ready = || !console.is_alive() || console.console().iter().any(|line| line.contains("listens"));
    world.run_until(LIMIT, is_ready).unwrap();
    Site { world, server, client }
}

/// The numbers of the jobs that were done.
fn done(server: &Node) -> BTreeSet<u64> {
    let lines = server.console();
    let number = |line: &String| line.strip_prefix("job ")?.split(' ').next()?.parse().ok();
    lines.iter().filter_map(number).collect()
}

/// Sends a job, and returns its number.
async fn post(client: &Node, server: &Node) -> Result<u64, NetError> {
    let mut stream = client.net().connect(server.endpoint(8080)).await?;
    stream.write_all(b"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 5\r\nConnection: close\r\n\r\nhello").await?;
    let (mut answer, mut buf) = (Vec::new(), [0; 1000]);
    while let count @ 1.. = stream.read(&mut buf).await? {
        answer.extend_from_slice(&buf[..count]);
    }
    let text = String::from_utf8(answer).unwrap();
    Ok(text.trim_end().rsplit("job ").next().and_then(|number| number.parse().ok()).expect("a job has a number"))
}

#[test]
fn each_job_that_was_answered_is_done() {
    for_seeds(0..30, |seed| {
        let disk = SimBlock::new(seed, DiskConfig { size_bytes: 1 << 20, ..DiskConfig::default() });
        let Site { mut world, server, client } = site(seed, &disk);
        disk.cut_at_operation(disk.operations() + Chance::new(seed).below(60));
        let answered = Rc::new(RefCell::new(BTreeSet::new()));
        let (list, from, to) = (answered.clone(), client.clone(), server.clone());
        client.run("posts", async move {
            while let Ok(number) = post(&from, &to).await {
                list.borrow_mut().insert(number);
            }
        });
        world.run_until(LIMIT, || !server.is_alive()).unwrap();
        let before = done(&server);

        let disk = disk.restart(seed + 1);
        let Site { mut world, server, .. } = site(seed + 1, &disk);
        let console = server.clone();
        let answered = answered.borrow();
        let is_done = || answered.iter().all(|number| before.contains(number) || done(&console).contains(number));
        world.run_until(LIMIT, is_done).unwrap();
    });
}
