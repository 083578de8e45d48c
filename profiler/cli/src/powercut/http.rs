//! `glass powercut put` and `glass powercut got`: the ready check for uploads by HTTP.

use crate::arguments::parse_duration;
use crate::console::{print, say};
use crate::run::parse_size;
use anyhow::{Context, Result};
use glass_profiler_powercut::http::{Download, Upload, got, put};
use std::fs;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

/// The two ends of the check for uploads.
#[derive(clap::Subcommand)]
pub enum Client {
    Put(Put),
    Got(Got),
}

/// Uploads items, and writes down which uploads were answered 2xx, and when.
#[derive(clap::Args)]
pub struct Put {
    /// Where to: `{n}` stands for the number of the item.
    url: String,
    /// The file to append to: a line for each acknowledged upload.
    #[arg(long, value_name = "FILE")]
    acks: PathBuf,
    /// The method.
    #[arg(long, default_value = "PUT")]
    method: String,
    /// A header of each request; `{n}` and `{bytes}` stand for the item's number and length. May be given several times.
    #[arg(long, value_name = "NAME: VALUE")]
    header: Vec<String>,
    /// The longest item.
    #[arg(long, value_name = "SIZE", default_value = "64K", value_parser = parse_size)]
    bytes_max: u64,
    /// Items, at most.
    #[arg(long, value_name = "COUNT", default_value_t = 1000)]
    items: u64,
    /// How long, at most.
    #[arg(long, value_name = "TIME", value_parser = parse_duration, default_value = "30s")]
    time: Duration,
    /// Uploads at the same time.
    #[arg(long, value_name = "COUNT", default_value_t = 4, value_parser = clap::value_parser!(u16).range(1..=256))]
    clients: u16,
}

/// Looks for the items that were acknowledged before GLASS_CUT_NS; exits with 1 if one is lost or not whole.
#[derive(clap::Args)]
pub struct Got {
    /// The server [default: that of the uploads]. With --take the address of the queue.
    #[arg(required_if_eq("take", "true"))]
    url: Option<String>,
    /// The file of `glass powercut put`.
    #[arg(long, value_name = "FILE")]
    acks: PathBuf,
    /// A header of each request. May be given several times.
    #[arg(long, value_name = "NAME: VALUE")]
    header: Vec<String>,
    /// The address is a queue: GET has the oldest item and an ETag, DELETE with If-Match removes it, 204 is the end.
    #[arg(long)]
    take: bool,
    /// How long the server may take until it answers.
    #[arg(long, value_name = "TIME", value_parser = parse_duration, default_value = "30s")]
    wait: Duration,
}

/// Runs one of them.
pub fn run(client: Client) -> Result<ExitCode> {
    match client {
        Client::Put(args) => {
            let upload = Upload {
                url: args.url,
                method: args.method,
                headers: args.header,
                bytes_max: args.bytes_max,
                items: args.items,
                duration: args.time,
                clients: args.clients.into(),
            };
            let done = put(&upload, &args.acks)?;
            say!("glass: {} uploads acknowledged, {} refused or not answered", done.acknowledged, done.refused);
            Ok(if done.acknowledged > 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE })
        }
        Client::Got(args) => {
            let cannot = || format!("cannot read {}", args.acks.display());
            let text = fs::read_to_string(&args.acks).with_context(cannot)?;
            let cut_ns = match std::env::var("GLASS_CUT_NS") {
                Ok(cut) => cut.parse().with_context(|| format!("GLASS_CUT_NS is no time: `{cut}`"))?,
                Err(_) => u64::MAX,
            };
            let download = Download { url: args.url, headers: args.header, takes: args.take, patience: args.wait };
            let (checked, lost) = got(&download, &text, cut_ns)?;
            for (item, wrong) in &lost {
                print(&format!("lost {} item {} ({}), {wrong}\n", item.answered_ns, item.number, item.url))?;
            }
            print(&format!("{} of {checked} acknowledged items are lost\n", lost.len()))?;
            Ok(if lost.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
        }
    }
}
