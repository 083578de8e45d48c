//! Requests to the server, each of which ends: with its answer, after a time, or when the connection is lost.

use crate::error::EngineError;
use crate::record::{Key, Record};
use async_nats::client::{Request, RequestErrorKind};
use async_nats::jetstream::Context;
use async_nats::{Client, HeaderMap, Message, header};
use serde_json::Value;
use std::time::Duration;
use tokio::sync::watch;

/// How long a request waits for its answer: a disk of the server that writes a chunk and flushes it may be slow.
const ANSWER_TIME: Duration = Duration::from_secs(10);

/// How long a change that may have been made is tried again, until the connection is back.
const RETRY_TIME: Duration = Duration::from_secs(10);
/// Pause before it.
const RETRY_PAUSE: Duration = Duration::from_millis(100);

/// Bytes of a message with data at most.
pub(crate) const CHUNK_BYTES: usize = 1 << 20;

/// The connection: how often it changed, and whether there is one.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Connection {
    pub(crate) changes: u64,
    pub(crate) is_up: bool,
}

/// The names of a queue in the engine.
#[derive(Debug, Clone)]
pub(crate) struct Names {
    pub(crate) queue: String,
}

impl Names {
    pub(crate) fn items(&self) -> String {
        format!("{}-items", self.queue)
    }

    pub(crate) fn data(&self) -> String {
        format!("{}-data", self.queue)
    }

    pub(crate) fn item(&self, key: impl std::fmt::Display) -> String {
        format!("{}.item.{key}", self.queue)
    }

    pub(crate) fn chunk(&self, key: impl std::fmt::Display, number: impl std::fmt::Display) -> String {
        format!("{}.data.{key}.{number}", self.queue)
    }
}

/// Sends requests. Clones share the connection.
#[derive(Clone)]
pub(crate) struct Link {
    pub(crate) client: Client,
    pub(crate) context: Context,
    pub(crate) names: Names,
    pub(crate) connection: watch::Receiver<Connection>,
}

/// Why a change was not made.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Failure {
    /// The state is another one, with this sequence; `None` if there is none (any more).
    Conflict(Option<(u64, Record)>),
    Engine(EngineError),
}

impl From<EngineError> for Failure {
    fn from(error: EngineError) -> Failure {
        Failure::Engine(error)
    }
}

impl Link {
    /// Completes when the connection is another one than `before`.
    pub(crate) async fn lost(&self, before: Connection) {
        let mut connection = self.connection.clone();
        if connection.wait_for(|now| now.changes != before.changes).await.is_err() {
            std::future::pending().await
        }
    }

    pub(crate) fn state(&self) -> Connection {
        *self.connection.borrow()
    }

    /// The result of `work`, unless there is no connection, or it is lost meanwhile.
    pub(crate) async fn guard<T>(&self, work: impl Future<Output = T>) -> Result<T, EngineError> {
        let before = self.state();
        if !before.is_up {
            return Err(EngineError::Absent);
        }
        tokio::select! {
            biased;
            result = work => Ok(result),
            () = self.lost(before) => Err(EngineError::Unknown),
            () = tokio::time::sleep(ANSWER_TIME) => Err(EngineError::Unknown),
        }
    }

    async fn request(&self, subject: String, headers: HeaderMap, payload: Vec<u8>) -> Result<Message, EngineError> {
        // The time is that of `guard`.
        let request = Request::new().payload(payload.into()).headers(headers).timeout(None);
        let answer = self.guard(self.client.send_request(subject, request)).await?;
        answer.map_err(|error| match error.kind() {
            RequestErrorKind::NoResponders => EngineError::Absent,
            RequestErrorKind::MaxPayloadExceeded => EngineError::Full,
            _ => EngineError::Unknown,
        })
    }

    /// A request to the API of JetStream.
    pub(crate) async fn ask(&self, what: String, payload: Value) -> Result<Value, EngineError> {
        let payload = if payload.is_null() { Vec::new() } else { payload.to_string().into_bytes() };
        let answer = self.request(format!("$JS.API.{what}"), HeaderMap::new(), payload).await?;
        let answer: Value = serde_json::from_slice(&answer.payload).map_err(|_| EngineError::Refused(0))?;
        match error_of(&answer) {
            Some(error) => Err(error),
            None => Ok(answer),
        }
    }

    /// Stores a message, if the last one of its subject has the sequence `expected`. Returns its sequence.
    pub(crate) async fn publish(
        &self,
        subject: String,
        expected: Option<u64>,
        payload: Vec<u8>,
    ) -> Result<u64, Failure> {
        let mut headers = HeaderMap::new();
        if let Some(expected) = expected {
            headers.insert(header::NATS_EXPECTED_LAST_SUBJECT_SEQUENCE, expected.to_string());
        }
        let answer = self.request(subject, headers, payload).await?;
        let answer: Value = serde_json::from_slice(&answer.payload).map_err(|_| EngineError::Refused(0))?;
        match (code_of(&answer), error_of(&answer)) {
            // The second one while another change of the subject is in progress.
            (Some(10_071 | 10_164), _) => Err(Failure::Conflict(None)),
            (_, Some(error)) => Err(Failure::Engine(error)),
            (_, None) => Ok(answer["seq"].as_u64().ok_or(EngineError::Refused(0))?),
        }
    }

    /// The newest record of an item, from the server that decides.
    pub(crate) async fn newest(&self, key: Key) -> Result<Option<(u64, Record)>, EngineError> {
        use async_nats::jetstream::stream::LastRawMessageErrorKind;
        let (stream, subject) = (self.names.items(), self.names.item(key));
        let read = async {
            let stream = self.context.get_stream_no_info(stream).await.map_err(|_| EngineError::Refused(0))?;
            match stream.get_last_raw_message_by_subject(&subject).await {
                Ok(message) => {
                    let record = Record::decode(&message.payload).ok_or(EngineError::Unusable)?;
                    Ok(Some((message.sequence, record)))
                }
                Err(error) if error.kind() == LastRawMessageErrorKind::NoMessageFound => Ok(None),
                Err(_) => Err(EngineError::Absent),
            }
        };
        self.guard(read).await?
    }

    /// Replaces exactly the record with the sequence `expected`, 0 for none, and returns the sequence of the new one. After an answer that was
    /// lost it tries again, until there is one, or for some seconds.
    pub(crate) async fn change(&self, key: Key, expected: u64, record: Record) -> Result<u64, Failure> {
        let end = tokio::time::Instant::now() + RETRY_TIME;
        let mut may_be_made = false;
        loop {
            let error = match self.publish(self.names.item(key), Some(expected), record.encode()).await {
                Ok(sequence) => return Ok(sequence),
                Err(Failure::Conflict(_)) => match self.newest(key).await {
                    Ok(Some((sequence, newest))) if newest.nonce == record.nonce => return Ok(sequence),
                    Ok(newest) => return Err(Failure::Conflict(newest)),
                    Err(error) => error,
                },
                Err(Failure::Engine(error)) => {
                    may_be_made |= error == EngineError::Unknown;
                    error
                }
            };
            match error {
                EngineError::Unknown => {}
                EngineError::Absent if may_be_made => {}
                error => return Err(Failure::Engine(error)),
            }
            let mut connection = self.connection.clone();
            let back = async {
                tokio::time::sleep(RETRY_PAUSE).await;
                let _ = connection.wait_for(|now| now.is_up).await;
            };
            if tokio::time::timeout_at(end, back).await.is_err() {
                return Err(Failure::Engine(EngineError::Unknown));
            }
        }
    }

    /// Removes the messages of a subject, up to a sequence, or all.
    pub(crate) async fn purge(&self, stream: &str, subject: String, before: Option<u64>) -> Result<(), EngineError> {
        let payload = match before {
            Some(before) => serde_json::json!({"filter": subject, "seq": before}),
            None => serde_json::json!({"filter": subject}),
        };
        self.ask(format!("STREAM.PURGE.{stream}"), payload).await.map(drop)
    }
}

fn code_of(answer: &Value) -> Option<u64> {
    answer["error"]["err_code"].as_u64()
}

fn error_of(answer: &Value) -> Option<EngineError> {
    let error = answer.get("error")?;
    let description = error["description"].as_str().unwrap_or_default();
    Some(match code_of(answer).unwrap_or_default() {
        10_002 | 10_023 | 10_028 | 10_047 | 10_122 => EngineError::Full,
        10_077 if description.contains("maximum") || description.contains("no space") => EngineError::Full,
        // No leader, and the like.
        _ if error["code"].as_u64() == Some(503) => EngineError::Absent,
        code => EngineError::Refused(code),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_error_of_the_server_is_one_of_ours() {
        let error = |text: &str| error_of(&serde_json::from_str(text).unwrap());
        assert_eq!(error(r#"{"stream":"a","seq":1}"#), None);
        let full = r#"{"error":{"code":503,"err_code":10077,"description":"maximum bytes exceeded"}}"#;
        assert_eq!(error(full), Some(EngineError::Full));
        assert_eq!(error(r#"{"error":{"code":503,"err_code":10008}}"#), Some(EngineError::Absent));
        assert_eq!(error(r#"{"error":{"code":400,"err_code":10052}}"#), Some(EngineError::Refused(10_052)));
    }
}
