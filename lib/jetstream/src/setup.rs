//! The streams of a queue: made if they are missing, and checked.

use crate::address::Address;
use crate::error::EngineError;
use crate::link::Link;
use async_nats::jetstream::stream::{Config, DiscardPolicy, RetentionPolicy, StorageType};
use std::time::Duration;
use tokio::io::{AsyncReadExt, AsyncWriteExt};

/// How long the monitoring of a server has to answer.
const MONITOR_TIME: Duration = Duration::from_secs(5);
/// Bytes of its answer at most.
const MONITOR_BYTES_MAX: u64 = 1 << 20;

/// Why the streams cannot be used.
pub(crate) enum SetupError {
    /// The engine does not answer.
    Absent,
    /// The text states what to do.
    Unusable(String),
}

impl From<EngineError> for SetupError {
    fn from(error: EngineError) -> SetupError {
        match error {
            EngineError::Absent | EngineError::Unknown => SetupError::Absent,
            error => SetupError::Unusable(error.to_string()),
        }
    }
}

/// The configuration of a stream: nothing leaves it but by our changes.
fn config(name: String, subject: String, replicas: usize) -> Config {
    Config {
        name,
        subjects: vec![subject],
        retention: RetentionPolicy::Limits,
        max_consumers: -1,
        max_messages: -1,
        max_bytes: -1,
        // The newest state of an item; and a chunk that is stored twice replaces itself.
        max_messages_per_subject: 1,
        max_message_size: -1,
        // A stream that is full refuses messages; the default removes the oldest ones.
        discard: DiscardPolicy::New,
        storage: StorageType::File,
        num_replicas: replicas,
        allow_direct: true,
        ..Config::default()
    }
}

/// Makes the streams, or checks those that are there.
pub(crate) async fn streams(link: &Link, address: &Address) -> Result<(), SetupError> {
    let names = &link.names;
    if !link.client.server_info().jetstream {
        let text = "the server has no JetStream: start nats-server with -js, or with jetstream in its configuration";
        return Err(SetupError::Unusable(text.into()));
    }
    let wanted = [
        config(names.items(), names.item("*"), address.replicas),
        config(names.data(), names.chunk("*", "*"), address.replicas),
    ];
    for config in wanted {
        let made = link.guard(link.context.get_or_create_stream(config.clone())).await;
        let stream = made.map_err(|_| SetupError::Absent)?.map_err(|error| refused(&config.name, &error))?;
        if let Some(what) = difference(&config, &stream.cached_info().config) {
            return Err(SetupError::Unusable(format!(
                "the stream {} of the engine was made by another program, or changed: {what}; take another name for the queue, or correct it",
                config.name
            )));
        }
    }
    Ok(())
}

fn refused(name: &str, error: &async_nats::jetstream::context::CreateStreamError) -> SetupError {
    use async_nats::jetstream::context::CreateStreamErrorKind as Kind;
    match error.kind() {
        Kind::JetStream(error) if error.code() == 503 => SetupError::Absent,
        // It is starting, or has no leader.
        Kind::JetStreamUnavailable | Kind::TimedOut | Kind::Response => SetupError::Absent,
        kind => SetupError::Unusable(format!("the stream {name} cannot be made in the engine: {kind}")),
    }
}

/// What a stream has that would lose items.
fn difference(wanted: &Config, found: &Config) -> Option<&'static str> {
    if found.storage != StorageType::File {
        return Some("it is in memory, and storage must be file");
    }
    if found.subjects != wanted.subjects {
        return Some("it has other subjects");
    }
    if found.retention != RetentionPolicy::Limits || !found.max_age.is_zero() || found.max_messages > 0 {
        return Some("it removes messages by itself: retention must be limits, without max_age and max_msgs");
    }
    if found.discard != DiscardPolicy::New {
        return Some("it removes old messages when it is full: discard must be new");
    }
    if found.max_messages_per_subject != 1 {
        return Some("max_msgs_per_subject must be 1");
    }
    if found.num_replicas != wanted.num_replicas {
        return Some("it has another number of replicas: give it as ?replicas=N, or change the stream");
    }
    if found.no_ack || found.sealed || found.deny_purge || !found.allow_direct {
        return Some("it must be neither sealed nor without acknowledgements, permit to purge, and have allow_direct");
    }
    None
}

/// What a server writes before it answers, as far as it shows that: an error if it may lose what it has acknowledged.
pub(crate) async fn durability(address: &Address) -> Result<(), String> {
    let Some(port) = address.monitor else {
        if address.replicas > 1 {
            return Ok(());
        }
        return Err("whether the engine writes before it answers was not checked: its server must have sync_interval: always; with \
                    ?monitor=PORT the queue looks at it"
            .into());
    };
    let (host, _) = &address.servers[0];
    let seen = tokio::time::timeout(MONITOR_TIME, monitor(host, port)).await;
    let seen =
        seen.map_err(|_| "it does not answer".to_owned()).and_then(|seen| seen.map_err(|error| error.to_string()));
    match seen {
        Ok(true) => Ok(()),
        Ok(false) => Err(format!(
            "a power cut takes what the engine has acknowledged: the server {host} must have sync_interval: always in the section jetstream"
        )),
        Err(error) => Err(format!("the monitoring of the server {host} at port {port} cannot be read: {error}")),
    }
}

/// Whether a server flushes before it acknowledges.
async fn monitor(host: &str, port: u16) -> std::io::Result<bool> {
    let mut stream = tokio::net::TcpStream::connect(format!("{host}:{port}")).await?;
    stream.write_all(format!("GET /varz HTTP/1.0\r\nHost: {host}\r\n\r\n").as_bytes()).await?;
    let mut answer = Vec::new();
    stream.take(MONITOR_BYTES_MAX).read_to_end(&mut answer).await?;
    let body = answer.windows(4).position(|end| end == b"\r\n\r\n").map_or(0, |end| end + 4);
    let answer: serde_json::Value = serde_json::from_slice(&answer[body..])?;
    Ok(answer["jetstream"]["config"]["sync_always"] == true)
}
