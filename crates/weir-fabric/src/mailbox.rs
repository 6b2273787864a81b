//! Letters to a thread that sleeps in a poll.
//!
//! A letter wakes the thread only if no other did since it looked last: many letters cost one
//! write to its eventfd.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{channel, Receiver, Sender};
use std::sync::Arc;

use mio::{Poll, Token as Key, Waker};

/// Where letters are posted.
pub struct MailboxSender<C> {
    sender: Sender<C>,
    waker: Arc<Waker>,
    woken: Arc<AtomicBool>,
}

impl<C> std::fmt::Debug for MailboxSender<C> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("MailboxSender").finish_non_exhaustive()
    }
}

impl<C> Clone for MailboxSender<C> {
    fn clone(&self) -> Self {
        MailboxSender {
            sender: self.sender.clone(),
            waker: Arc::clone(&self.waker),
            woken: Arc::clone(&self.woken),
        }
    }
}

/// Where they arrive.
#[derive(Debug)]
pub struct MailboxReceiver<C> {
    receiver: Receiver<C>,
    woken: Arc<AtomicBool>,
}

/// A post for the thread that sleeps in `poll`; its wakes bear `key`.
pub fn mailbox<C>(
    poll: &Poll,
    key: Key,
) -> std::io::Result<(MailboxSender<C>, MailboxReceiver<C>)> {
    let (sender, receiver) = channel();
    let woken = Arc::new(AtomicBool::new(false));
    let post = MailboxSender {
        sender,
        waker: Arc::new(Waker::new(poll.registry(), key)?),
        woken: Arc::clone(&woken),
    };
    Ok((post, MailboxReceiver { receiver, woken }))
}

impl<C> MailboxSender<C> {
    /// Sends a letter; gives it back when the thread has ended.
    pub fn send(&self, message: C) -> Result<(), C> {
        self.sender.send(message).map_err(|back| back.0)?;
        // The letter is there before the look at the flag, which the thread clears before it
        // looks for letters: so one of both sees the other.
        if !self.woken.swap(true, Ordering::SeqCst) {
            // It fails only when the thread has ended.
            let _ = self.waker.wake();
        }
        Ok(())
    }
}

impl<C> MailboxReceiver<C> {
    /// Says that the thread looks now; to be called after each wake, before [`Letters::next`].
    pub fn mark_awake(&self) {
        self.woken.store(false, Ordering::SeqCst);
    }

    /// The next letter, if one is there.
    pub fn next(&self) -> Option<C> {
        self.receiver.try_recv().ok()
    }
}
