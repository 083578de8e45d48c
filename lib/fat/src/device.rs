//! Our block devices as `hadris-fat` uses them, for everything but the contents of files that are read.

use alloc::boxed::Box;
use alloc::vec::Vec;
use core::fmt;
use core::pin::Pin;
use core::task::{Context, Poll, ready};
use glass_api::{Block, BlockError, Buf, OutOfMemory};
use hadris_io::{Error, ErrorType};
use hadris_storage::async_::BlockDevice;
use hadris_storage::{BlockIndex, BlockSize};

/// Bytes of a block, if the device's size and sectors allow it: tables are read in such pieces.
const BLOCK_BYTES: u32 = 4096;

/// Why the device failed.
#[derive(Debug, Clone, Copy)]
pub(crate) enum DeviceError {
    Block(BlockError),
    OutOfMemory,
}

impl From<OutOfMemory> for DeviceError {
    fn from(_: OutOfMemory) -> DeviceError {
        DeviceError::OutOfMemory
    }
}

impl fmt::Display for DeviceError {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        match self {
            DeviceError::Block(error) => write!(f, "{error}"),
            DeviceError::OutOfMemory => f.write_str("no memory for a request"),
        }
    }
}

impl core::error::Error for DeviceError {}

/// A request in flight, which owns its buffer.
pub(crate) type InFlight = Pin<Box<dyn Future<Output = (Result<(), BlockError>, Option<Buf>)>>>;

pub(crate) struct Device<B> {
    block: B,
    size: BlockSize,
    /// Requests whose operation was dropped. What they write might land later, so nothing follows them before they end.
    abandoned: Vec<InFlight>,
}

impl<B: Block> Device<B> {
    /// `None` if sectors are longer than what FAT's library can use.
    pub(crate) fn new(block: B) -> Option<Device<B>> {
        let info = block.info();
        let suits = info.sector_bytes <= BLOCK_BYTES && info.size_bytes.is_multiple_of(BLOCK_BYTES.into());
        let bytes = if suits { BLOCK_BYTES } else { info.sector_bytes };
        let size = BlockSize::new(bytes).filter(|_| bytes <= BLOCK_BYTES)?;
        Some(Device { block, size, abandoned: Vec::new() })
    }

    fn offset(&self, first: BlockIndex) -> u64 {
        // The caller has checked that the range is inside the device.
        first.get() * u64::from(self.size.get())
    }

    fn settle(&mut self, context: &mut Context) -> Poll<()> {
        while let Some(request) = self.abandoned.last_mut() {
            let _ = ready!(request.as_mut().poll(context));
            self.abandoned.pop();
        }
        Poll::Ready(())
    }

    /// Advances the request that `start` makes when there is none yet.
    fn advance(
        &mut self,
        state: &mut Option<InFlight>,
        context: &mut Context,
        start: impl FnOnce(&Self) -> Result<InFlight, DeviceError>,
    ) -> Poll<Result<Option<Buf>, Error<DeviceError>>> {
        const FAILED: &str = "the device failed";
        let request = match state {
            Some(request) => request,
            None => {
                ready!(self.settle(context));
                match start(self) {
                    Ok(request) => state.insert(request),
                    Err(error) => return Poll::Ready(Err(Error::device(error, FAILED))),
                }
            }
        };
        let (result, buf) = ready!(request.as_mut().poll(context));
        *state = None;
        Poll::Ready(result.map(|()| buf).map_err(|error| Error::device(DeviceError::Block(error), FAILED)))
    }
}

impl<B> ErrorType for Device<B> {
    type Error = DeviceError;
}

impl<B: Block> BlockDevice for Device<B> {
    type State = Option<InFlight>;

    fn block_size(&self) -> BlockSize {
        self.size
    }

    fn block_count(&self) -> u64 {
        self.block.info().size_bytes / u64::from(self.size.get())
    }

    fn writable(&self) -> bool {
        !self.block.info().read_only
    }

    fn poll_read_blocks(
        &mut self,
        state: &mut Self::State,
        context: &mut Context<'_>,
        first: BlockIndex,
        into: &mut [u8],
    ) -> Poll<Result<(), Error<DeviceError>>> {
        let start = |device: &Self| -> Result<InFlight, DeviceError> {
            let (block, offset, buf) = (device.block.clone(), device.offset(first), Buf::zeroed(into.len())?);
            Ok(Box::pin(async move {
                let (result, buf) = block.read(offset, buf).await;
                (result, Some(buf))
            }))
        };
        let buf = ready!(self.advance(state, context, start))?;
        buf.into_iter().for_each(|buf| into.copy_from_slice(&buf));
        Poll::Ready(Ok(()))
    }

    fn poll_write_blocks(
        &mut self,
        state: &mut Self::State,
        context: &mut Context<'_>,
        first: BlockIndex,
        from: &[u8],
    ) -> Poll<Result<(), Error<DeviceError>>> {
        let start = |device: &Self| -> Result<InFlight, DeviceError> {
            let (block, offset, buf) = (device.block.clone(), device.offset(first), Buf::copy_of(from)?);
            Ok(Box::pin(async move { (block.write(offset, buf).await.0, None) }))
        };
        self.advance(state, context, start).map_ok(drop)
    }

    fn poll_flush(
        &mut self,
        state: &mut Self::State,
        context: &mut Context<'_>,
    ) -> Poll<Result<(), Error<DeviceError>>> {
        let start = |device: &Self| -> Result<InFlight, DeviceError> {
            let block = device.block.clone();
            Ok(Box::pin(async move { (block.flush().await, None) }))
        };
        self.advance(state, context, start).map_ok(drop)
    }

    fn cancel(&mut self, state: &mut Self::State) {
        self.abandoned.extend(state.take());
    }
}
