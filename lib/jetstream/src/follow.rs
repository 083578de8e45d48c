//! Keeps the mirror: reads the stream of items from its start, then what is added. Whatever goes wrong, it begins again.

use crate::engine::{Shared, Status};
use crate::error::EngineError;
use crate::mirror::Mirror;
use crate::record::{Key, Record};
use crate::setup::{self, SetupError};
use async_nats::jetstream;
use futures_util::StreamExt;
use serde_json::json;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// How often the server shows that there is nothing new, and how long we wait for that.
const HEARTBEAT: Duration = Duration::from_secs(2);
const SILENCE: Duration = Duration::from_secs(8);
/// After that time without us, the server forgets what it sends to us.
const INACTIVE: Duration = Duration::from_secs(30);
/// Pauses before the next attempt.
const PAUSE: Duration = Duration::from_millis(200);
const PAUSE_UNUSABLE: Duration = Duration::from_secs(5);

/// Follows the stream, without end.
pub(crate) async fn follow(shared: Arc<Shared>) {
    loop {
        let mut connection = shared.link.connection.clone();
        if connection.wait_for(|now| now.is_up).await.is_err() {
            return;
        }
        let (status, pause) = match attempt(&shared).await {
            Err(SetupError::Unusable(text)) => (Status::Unusable(text), PAUSE_UNUSABLE),
            Ok(()) | Err(SetupError::Absent) => (Status::Absent, PAUSE),
        };
        shared.set_status(status);
        tokio::time::sleep(pause).await;
    }
}

async fn attempt(shared: &Shared) -> Result<(), SetupError> {
    setup::streams(&shared.link, &shared.address).await?;
    read(shared).await
}

/// Reads from the start until the connection is lost, or something was missed.
async fn read(shared: &Shared) -> Result<(), SetupError> {
    let link = &shared.link;
    let connection = link.state();
    let items = link.names.items();
    let info = link.ask(format!("STREAM.INFO.{items}"), json!(null)).await?;
    let last = info["state"]["last_seq"].as_u64().ok_or(EngineError::Refused(0))?;
    // Of the server's clock, as the times of messages.
    let now_there = info["ts"].as_str().and_then(|text| async_nats::datetime::parse_rfc3339(text).ok());
    let inbox = link.client.new_inbox();
    let mut subscriber = link.guard(link.client.subscribe(inbox.clone())).await?.map_err(|_| EngineError::Absent)?;
    let config = json!({
        "deliver_subject": inbox,
        "deliver_policy": "all",
        "ack_policy": "none",
        "replay_policy": "instant",
        "max_deliver": 1,
        "flow_control": true,
        "idle_heartbeat": HEARTBEAT.as_nanos() as u64,
        "inactive_threshold": INACTIVE.as_nanos() as u64,
        "mem_storage": true,
        "num_replicas": 1,
    });
    let created = link.ask(format!("CONSUMER.CREATE.{items}"), json!({"stream_name": items, "config": config})).await?;
    let mut is_behind = created["num_pending"].as_u64().ok_or(EngineError::Refused(0))? > 0;
    let mut mirror = Mirror::default();
    if !is_behind {
        shared.start_with(std::mem::take(&mut mirror), last);
    }
    let mut count = 0;
    loop {
        let message = tokio::select! {
            message = tokio::time::timeout(SILENCE, subscriber.next()) => message,
            () = link.lost(connection) => return Ok(()),
        };
        let Ok(Some(message)) = message else { return Ok(()) };
        if message.status.is_some() {
            // A heartbeat; one with a reply waits for us.
            let reply = message.reply.or_else(|| {
                let stalled = message.headers.as_ref()?.get("Nats-Consumer-Stalled")?;
                Some(stalled.as_str().into())
            });
            match reply {
                Some(reply) => _ = link.client.publish(reply, Vec::new().into()).await,
                // There is nothing to send, also if the last ones that were counted have been removed meanwhile.
                None if is_behind => {
                    is_behind = false;
                    shared.start_with(std::mem::take(&mut mirror), last);
                }
                None => {}
            }
            continue;
        }
        let message = jetstream::Message { message, context: link.context.clone() };
        let info = message.info().map_err(|_| EngineError::Refused(0))?;
        count += 1;
        if info.consumer_sequence != count {
            return Ok(());
        }
        let (sequence, pending, now) = (info.stream_sequence, info.pending, Instant::now());
        let age = now_there
            .filter(|_| is_behind)
            .map_or(Duration::ZERO, |there| Duration::try_from(there - info.published).unwrap_or(Duration::ZERO));
        let key = message.subject.rsplit('.').next().and_then(Key::parse);
        let record = Record::decode(&message.payload);
        let (Some(key), Some(record)) = (key, record) else {
            return Err(SetupError::Unusable(format!(
                "message {sequence} of the stream {items} is no record of this version: a newer program or another one has written it"
            )));
        };
        if is_behind {
            mirror.follow(key, sequence, record, age, now);
            if pending == 0 {
                is_behind = false;
                shared.start_with(std::mem::take(&mut mirror), last);
            }
        } else {
            shared.with_mirror(|mirror| mirror.follow(key, sequence, record, age, now));
            shared.notify();
        }
    }
}
