//! The inboxes of a machine's cores.

use crate::sys::{Full, Inbox};
use crate::task::{self, Message};
use alloc::boxed::Box;
use alloc::sync::Arc;
use alloc::vec::Vec;
use glass_api::{CoreHandle, Cores, SpawnOnError};
use glass_lib_executor::Unpark;

/// Closures that wait for one core at most.
pub const WAITING_MAX: usize = 4096;

/// What the cores of a machine request of each other; `C` is a core as its own tasks see it.
pub struct Mailboxes<C>(Box<[Mailbox<C>]>);

struct Mailbox<C> {
    inbox: Inbox<Message<C>>,
    doorbell: Arc<dyn Unpark>,
}

impl<C: Cores> Mailboxes<C> {
    /// One for each core; a core's doorbell makes it take its messages if it sleeps.
    pub fn new(doorbells: impl IntoIterator<Item = Arc<dyn Unpark>>) -> Mailboxes<C> {
        let mailbox = |doorbell| Mailbox { inbox: Inbox::new(WAITING_MAX), doorbell };
        Mailboxes(doorbells.into_iter().map(mailbox).collect())
    }

    /// How many cores there are.
    pub fn cores(&self) -> usize {
        self.0.len()
    }

    /// Has `core` call `message` in its loop; an error if so many wait for it already, or there is no such core.
    pub fn post(&self, core: usize, message: impl FnOnce(&C) + Send + 'static) -> Result<(), SpawnOnError> {
        self.post_boxed(core, Box::new(message))
    }

    fn post_boxed(&self, core: usize, message: Message<C>) -> Result<(), SpawnOnError> {
        let mailbox = self.0.get(core).ok_or(SpawnOnError::NoCore { core, cores: self.cores() })?;
        let pushed = mailbox.inbox.push(message);
        pushed.map_err(|Full(_)| SpawnOnError::Busy { core, waiting_max: WAITING_MAX })?;
        mailbox.doorbell.unpark();
        Ok(())
    }

    /// [`Cores::spawn_on`].
    pub fn spawn_on<T, F>(
        &self,
        core: usize,
        name: &'static str,
        start: impl FnOnce(C) -> F + Send + 'static,
    ) -> Result<CoreHandle<T>, SpawnOnError>
    where
        T: Send + 'static,
        F: Future<Output = T> + 'static,
    {
        let (message, handle) = task::start(name, start);
        self.post_boxed(core, message)?;
        Ok(handle)
    }

    /// Whether messages wait for `core`.
    #[inline]
    pub fn has_mail(&self, core: usize) -> bool {
        self.0.get(core).is_some_and(|mailbox| !mailbox.inbox.is_empty())
    }

    /// Carries out what waits for the core `own`; how many messages that was.
    pub fn deliver(&self, own: &C) -> usize {
        let messages = self.0.get(own.core()).map_or(Vec::new(), |mailbox| mailbox.inbox.take());
        let count = messages.len();
        messages.into_iter().for_each(|message| message(own));
        count
    }
}
