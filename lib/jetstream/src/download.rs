//! Downloads: chunks of an item from the engine, read ahead.

use crate::engine::{Engine, Shared};
use crate::error::EngineError;
use crate::record::Key;
use async_nats::client::Request;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::mpsc;

/// Chunks that are read ahead.
const CHUNKS_AHEAD: usize = 2;

/// A replica may be behind the one that has acknowledged a chunk: so often it is requested again, with a pause.
const ATTEMPTS: u32 = 10;
const PAUSE: Duration = Duration::from_millis(100);

/// The data of an item. It ends early if the item is removed meanwhile.
pub struct Download {
    chunks: mpsc::Receiver<Result<Vec<u8>, EngineError>>,
}

impl Engine {
    /// Downloads item `id`.
    pub fn download(&self, id: u64) -> Option<Download> {
        let known = self.shared.with_mirror(|mirror| mirror.get(id))?;
        let (sender, chunks) = mpsc::channel(CHUNKS_AHEAD);
        let (shared, key, count) = (self.shared.clone(), known.key, known.record.chunks);
        self.spawn(move || async move {
            for number in 0..count {
                let chunk = read(&shared, key, number).await;
                let failed = chunk.is_err();
                // The download was dropped.
                if sender.send(chunk).await.is_err() || failed {
                    return;
                }
            }
        });
        Some(Download { chunks })
    }
}

impl Download {
    /// The next chunk; `None` after the last.
    pub async fn next(&mut self) -> Option<Result<Vec<u8>, EngineError>> {
        self.chunks.recv().await
    }
}

async fn read(shared: &Arc<Shared>, key: Key, number: u64) -> Result<Vec<u8>, EngineError> {
    let link = &shared.link;
    let subject = format!("$JS.API.DIRECT.GET.{}.{}", link.names.data(), link.names.chunk(key, number));
    for attempt in 0..ATTEMPTS {
        if attempt > 0 {
            tokio::time::sleep(PAUSE).await;
        }
        let request = Request::new().payload(Vec::new().into()).timeout(None);
        match link.guard(link.client.send_request(subject.clone(), request)).await? {
            Ok(message) if message.status.is_none() => return Ok(message.payload.into()),
            // It is not there, or not yet.
            Ok(_) => {}
            Err(_) => return Err(EngineError::Absent),
        }
    }
    Err(EngineError::Gone)
}
