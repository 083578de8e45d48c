//! Uploads: chunks on their way to the engine.

use crate::engine::{Engine, Shared};
use crate::error::EngineError;
use crate::link::{CHUNK_BYTES, Failure};
use crate::record::{Key, Record, State};
use std::collections::VecDeque;
use std::sync::Arc;
use std::time::{Duration, Instant};
use tokio::sync::mpsc;
use tokio::task::{JoinError, JoinHandle};

/// Chunks of an upload that wait, and that the engine has not acknowledged: at most twice as many are in memory, with the one that is filled.
const CHUNKS_IN_FLIGHT: usize = 2;

/// After this part of the time after which data of interrupted uploads is removed, an upload whose last chunk was stored does not become an
/// item: its data may be gone soon (see `sweep`).
const IDLE_PART: u32 = 3;

/// How the task that stores chunks has ended.
type Sent = Result<Result<(u64, Instant), EngineError>, JoinError>;

/// An item that is being sent to the engine. Its chunks are removed if it is dropped before [`Upload::finish`].
pub struct Upload {
    engine: Engine,
    key: Key,
    chunks: Option<mpsc::Sender<Vec<u8>>>,
    /// How many were stored, and when the last one was.
    sending: Option<JoinHandle<Result<(u64, Instant), EngineError>>>,
}

impl Engine {
    /// Starts an upload.
    pub fn upload(&self) -> Result<Upload, EngineError> {
        self.shared.check()?;
        let (chunks, received) = mpsc::channel(CHUNKS_IN_FLIGHT);
        let key = Key::new();
        let sending = self.spawn(|| send(self.shared.clone(), key, received));
        Ok(Upload { engine: self.clone(), key, chunks: Some(chunks), sending: Some(sending) })
    }

    /// Bytes of a chunk; only the last one of an item has fewer.
    pub fn chunk_bytes(&self) -> usize {
        match self.shared.link.client.server_info().max_payload {
            0 => CHUNK_BYTES,
            max => max.min(CHUNK_BYTES),
        }
    }
}

impl Upload {
    /// Sends the next chunk, once few are in flight.
    pub async fn write(&mut self, chunk: Vec<u8>) -> Result<(), EngineError> {
        let Some(chunks) = &self.chunks else { return Err(EngineError::Absent) };
        if chunks.send(chunk).await.is_ok() {
            return Ok(());
        }
        self.chunks = None;
        let Some(sending) = self.sending.take() else { return Err(EngineError::Absent) };
        let sent = sending.await;
        self.engine.spawn(|| purge(self.engine.shared.clone(), self.key));
        Err(stored(sent).err().unwrap_or(EngineError::Absent))
    }

    /// Makes it an item, and returns its id once that is durable. It becomes one even if the future is dropped.
    pub async fn finish(mut self, length: u64, checksum: u64) -> Result<u64, EngineError> {
        drop(self.chunks.take());
        let Some(sending) = self.sending.take() else { return Err(EngineError::Absent) };
        let (engine, key) = (self.engine.clone(), self.key);
        let shared = engine.shared.clone();
        engine.run(move || async move { complete(&shared, key, sending, length, checksum).await }).await
    }
}

impl Drop for Upload {
    fn drop(&mut self) {
        drop(self.chunks.take());
        let Some(sending) = self.sending.take() else { return };
        let (shared, key) = (self.engine.shared.clone(), self.key);
        self.engine.spawn(move || async move {
            let _ = sending.await;
            purge(shared, key).await;
        });
    }
}

/// How many chunks were stored, and when the last one was. An item is not made yet, whatever has failed.
fn stored(sent: Sent) -> Result<(u64, Instant), EngineError> {
    match sent {
        Ok(Err(EngineError::Unknown)) | Err(_) => Err(EngineError::Absent),
        Ok(sent) => sent,
    }
}

/// Removes the data of an upload. What fails is repeated when old data is looked for.
async fn purge(shared: Arc<Shared>, key: Key) {
    let link = &shared.link;
    let _ = link.purge(&link.names.data(), link.names.chunk(key, "*"), None).await;
}

async fn complete(
    shared: &Arc<Shared>,
    key: Key,
    sending: JoinHandle<Result<(u64, Instant), EngineError>>,
    length: u64,
    checksum: u64,
) -> Result<u64, EngineError> {
    let link = &shared.link;
    let (chunks, _) = match stored(sending.await) {
        Ok((_, last)) if last.elapsed() > shared.address.interrupted / IDLE_PART => {
            purge(shared.clone(), key).await;
            return Err(EngineError::TooSlow);
        }
        Ok(sent) => sent,
        Err(error) => {
            purge(shared.clone(), key).await;
            return Err(error);
        }
    };
    let record = Record::new(length, checksum, chunks);
    match link.change(key, 0, record).await {
        Ok(sequence) => {
            shared.with_mirror(|mirror| mirror.learn(key, sequence, record, Instant::now()));
            shared.notify();
            Ok(sequence)
        }
        Err(Failure::Engine(EngineError::Unknown)) => {
            tokio::spawn(withdraw(shared.clone(), key));
            Err(EngineError::Unknown)
        }
        Err(Failure::Engine(error)) => {
            purge(shared.clone(), key).await;
            Err(error)
        }
        // Old data was looked for meanwhile.
        Err(Failure::Conflict(_)) => Err(EngineError::TooSlow),
    }
}

/// The answer to its client was that the upload failed, and the client repeats it: whatever the engine did, it must not be an item, unless a consumer has it.
async fn withdraw(shared: Arc<Shared>, key: Key) {
    let link = &shared.link;
    loop {
        let mut connection = link.connection.clone();
        if connection.wait_for(|now| now.is_up).await.is_err() {
            return;
        }
        let (expected, record) = match link.newest(key).await {
            Ok(None) => (0, Record::abandoned()),
            Ok(Some((sequence, record))) if record.state == State::Ready && record.lease == 0 => {
                (sequence, record.with(State::Removed))
            }
            Ok(Some((_, record))) if record.is_item() => return,
            Ok(Some(_)) => break,
            Err(_) => {
                tokio::time::sleep(Duration::from_secs(1)).await;
                continue;
            }
        };
        if link.change(key, expected, record).await.is_ok() {
            break;
        }
    }
    purge(shared.clone(), key).await;
}

/// Stores the chunks that arrive, a few at a time.
async fn send(
    shared: Arc<Shared>,
    key: Key,
    mut chunks: mpsc::Receiver<Vec<u8>>,
) -> Result<(u64, Instant), EngineError> {
    let mut in_flight: VecDeque<JoinHandle<Result<u64, Failure>>> = VecDeque::new();
    let (mut count, mut last) = (0, Instant::now());
    loop {
        let chunk = chunks.recv().await;
        while in_flight.len() >= if chunk.is_some() { CHUNKS_IN_FLIGHT } else { 1 } {
            let Some(oldest) = in_flight.pop_front() else { break };
            match oldest.await {
                Ok(Ok(_)) => last = Instant::now(),
                Ok(Err(Failure::Engine(error))) => return Err(error),
                Ok(Err(Failure::Conflict(_))) | Err(_) => return Err(EngineError::Unknown),
            }
        }
        let Some(chunk) = chunk else { return Ok((count, last)) };
        let (link, subject) = (shared.link.clone(), shared.link.names.chunk(key, count));
        in_flight.push_back(tokio::spawn(async move { link.publish(subject, None, chunk).await }));
        count += 1;
    }
}
