//! `queue small`: downloads of an item of 1 KiB on kept connections, beside nginx on the host and in a VM with Linux.

use super::{Contestant, PORT, vm, wait};
use crate::block::Body;
use crate::figure::Figure;
use crate::load::{Load, Place};
use crate::outcome::{Outcome, in_turn};
use crate::peers::linux;
use crate::peers::nginx::Nginx;
use crate::run::Run;
use crate::statistics::Summary;
use crate::web;
use anyhow::{Context, Result, ensure};
use glass_tests::folder::Folder;
use glass_tests::http::Client;
use glass_tests::netns::{self, Namespace};
use glass_tests::queue::World;
use std::net::{Ipv4Addr, SocketAddr};
use std::time::Duration;

const ITEM_BYTES: u64 = 1024;
/// Turns of each contestant, and how long a measurement takes.
const ROUNDS: usize = 7;
const DURATION: Duration = Duration::from_millis(500);
const DURATION_SHORT: Duration = Duration::from_millis(20);
/// Kept connections.
const CONNECTIONS: [usize; 2] = [1, 16];

/// Queues as VMs behind TAP devices, nginx behind a pair of Ethernet devices, nginx in Linux behind a TAP device.
pub(super) fn small(outcome: &mut Outcome, run: &Run) -> Result<()> {
    if let Some(reason) = netns::obstacle() {
        outcome.skip(reason);
        return Ok(());
    }
    let folder = Folder::new("bench-queue")?;
    let (near, far, far_address) = Namespace::pair()?;
    let body = Body::new(ITEM_BYTES);
    // Name, path and place, and what has to live as long.
    let mut servers: Vec<(String, &str, Place)> = Vec::new();
    let mut vms = Vec::new();
    for (number, world) in (1..).zip(outcome.available([World::Kvm, World::Tcg])) {
        let address = Ipv4Addr::new(10, 77, number, 2);
        vms.push(vm(world, number, address, &near, &folder)?);
        let address = SocketAddr::from((address, PORT));
        wait(&Contestant::queue(world.to_string(), "", address, body.clone()), &near)?;
        let put = near.inside(|| Ok(Client::connect(address)?.put("/uploader", ITEM_BYTES, &mut body.reader())?))?;
        ensure!(put.status() == 200, "PUT was answered {}", put.status());
        servers.push((world.to_string(), "downloader", Place::Tcp(address)));
    }
    let site = folder.file("site");
    std::fs::create_dir(&site)?;
    std::io::copy(&mut body.reader(), &mut std::fs::File::create(site.join("item"))?)?;
    let nginx = Nginx::serve(&far, &near, SocketAddr::from((far_address, PORT)), &site)?;
    match &nginx {
        Some(nginx) => servers.push(("native_nginx".into(), "item", Place::Tcp(nginx.address))),
        None => outcome.note("nginx skipped: it is not installed"),
    }
    let guest = match linux::obstacle(run) {
        None => web::linux_guest(&near, &site, &folder).map_err(|error| format!("{error:#}")),
        Some(reason) => Err(reason.to_owned()),
    };
    match &guest {
        Ok((_, _, place)) => servers.push(("linux_guest".into(), "item", place.clone())),
        Err(reason) => outcome.note(format!("linux_guest skipped: {reason}")),
    }
    for (name, _, place) in &servers {
        place.wait(&near, web::LIMIT).with_context(|| name.clone())?;
    }
    let duration = run.size(DURATION, DURATION_SHORT);
    let measure = |index: usize| {
        let (name, path, place) = &servers[index];
        let measure = |connections| Load { path, bytes: ITEM_BYTES, connections, keeps: true, duration }.run(place);
        let rates = near.inside(|| CONNECTIONS.into_iter().map(measure).collect::<Result<Vec<f64>>>());
        rates.with_context(|| name.clone())
    };
    in_turn(outcome, servers.len(), ROUNDS, run, measure, |outcome, samples| add(outcome, &servers, samples))?;
    outcome.note(format!("small: GETs a second of an item of {ITEM_BYTES} bytes on 1 and on 16 kept connections, by the same client, {} ms a measurement", DURATION.as_millis()));
    Ok(())
}

fn add(outcome: &mut Outcome, servers: &[(String, &str, Place)], samples: &[Vec<Vec<f64>>]) {
    let column = |index: usize, mode: usize| samples[index].iter().map(|rates| rates[mode]).collect::<Vec<_>>();
    for (index, (name, ..)) in servers.iter().enumerate() {
        let peer = match name.as_str() {
            "kvm" => "native_nginx",
            "tcg" => "linux_guest",
            _ => "",
        };
        let peer = servers.iter().position(|(other, ..)| other == peer);
        for (mode, connections) in CONNECTIONS.into_iter().enumerate() {
            let figure = Figure::of(&format!("queue.{name}.1k_keep{connections}_get_s"), "1/s", &column(index, mode));
            let median =
                peer.and_then(|peer| Some((servers[peer].0.as_str(), Summary::of(&column(peer, mode))?.median)));
            outcome.add(figure.map(|figure| figure.beside(median)));
        }
    }
}
