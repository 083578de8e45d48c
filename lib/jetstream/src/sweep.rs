//! Removes what interrupted uploads and removals left in the engine.
//!
//! Data without an item is of an upload in progress, in this program or another one, or of one that was interrupted. If its newest chunk is old,
//! its name is taken first, by a record: an upload that continues all the same is refused then, instead of becoming an item without data.

use crate::engine::Shared;
use crate::error::EngineError;
use crate::link::Failure;
use crate::record::{Key, Record, State};
use serde_json::{Value, json};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// How often it looks, or more often if data is removed earlier.
const PERIOD: Duration = Duration::from_secs(60);
/// How long the record of a removed item stays: programs that were disconnected read everything again, so seconds would do.
const REMOVED_TIME: Duration = Duration::from_secs(10 * 60);
/// How long the name of an interrupted upload stays taken.
const ABANDONED_TIME: Duration = Duration::from_secs(7 * 24 * 60 * 60);

/// Looks for what is left, without end.
pub(crate) async fn sweep(shared: Arc<Shared>) {
    let interrupted = shared.address.interrupted;
    let mut seen: Option<Instant> = None;
    loop {
        shared.until_ready().await;
        // What fails is tried in the next round.
        let _ = records(&shared, seen.is_none()).await;
        if seen.is_none_or(|seen| seen.elapsed() >= interrupted) {
            let _ = data(&shared).await;
            seen = Some(Instant::now());
        }
        tokio::time::sleep(PERIOD.min(interrupted)).await;
    }
}

/// Removes records that are old, after the data of their items. At the start the data of all of them.
async fn records(shared: &Shared, is_start: bool) -> Result<(), EngineError> {
    let link = &shared.link;
    shared.check()?;
    for (key, gone) in shared.with_mirror(|mirror| mirror.gone()) {
        let time =
            if gone.state == State::Removed { REMOVED_TIME.min(shared.address.interrupted) } else { ABANDONED_TIME };
        let is_old = gone.since.elapsed() >= time;
        if is_old || is_start {
            link.purge(&link.names.data(), link.names.chunk(key, "*"), None).await?;
        }
        if is_old {
            link.purge(&link.names.items(), link.names.item(key), Some(gone.sequence + 1)).await?;
            shared.with_mirror(|mirror| mirror.forget(&key));
        }
    }
    Ok(())
}

/// Removes data of interrupted uploads.
async fn data(shared: &Shared) -> Result<(), EngineError> {
    let link = &shared.link;
    let stream = link.names.data();
    let mut offset = 0_u64;
    loop {
        let payload = json!({"subjects_filter": link.names.chunk("*", 0), "offset": offset});
        let info = link.ask(format!("STREAM.INFO.{stream}"), payload).await?;
        let now = info["ts"].as_str().and_then(|text| async_nats::datetime::parse_rfc3339(text).ok());
        let now = now.ok_or(EngineError::Refused(0))?;
        let subjects = info["state"]["subjects"].as_object();
        let keys: Vec<Key> =
            subjects.into_iter().flatten().filter_map(|(subject, _)| Key::parse(subject.split('.').nth(2)?)).collect();
        for key in keys.iter().filter(|key| !shared.with_mirror(|mirror| mirror.has(key))) {
            let newest =
                link.ask(format!("STREAM.MSG.GET.{stream}"), json!({"last_by_subj": link.names.chunk(key, "*")}));
            let Ok(newest) = newest.await else { continue };
            let written = newest["message"]["time"].as_str();
            let written = written.and_then(|text| async_nats::datetime::parse_rfc3339(text).ok());
            let age = written.and_then(|written| Duration::try_from(now - written).ok());
            if age.is_some_and(|age| age >= shared.address.interrupted) {
                abandon(shared, *key).await?;
            }
        }
        let total = info["total"].as_u64().unwrap_or(0);
        let limit = info["limit"].as_u64().unwrap_or(u64::MAX);
        offset = match offset.checked_add(limit) {
            Some(next) if next < total && info["total"] != Value::Null => next,
            _ => return Ok(()),
        };
    }
}

/// Takes the name of an interrupted upload, and removes its data.
async fn abandon(shared: &Shared, key: Key) -> Result<(), EngineError> {
    let link = &shared.link;
    match link.change(key, 0, Record::abandoned()).await {
        Ok(_) => link.purge(&link.names.data(), link.names.chunk(key, "*"), None).await,
        // It has become an item.
        Err(Failure::Conflict(_)) => Ok(()),
        Err(Failure::Engine(error)) => Err(error),
    }
}
