//! Messages to a thread that sleeps in a poll.
//!
//! A sender wakes the thread only if no other sender did since the thread last looked: many
//! messages cost one write to its eventfd.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{channel, Receiver, Sender};
use std::sync::Arc;

use mio::{Poll, Token as Key, Waker};

/// The sending end.
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

/// The receiving end.
#[derive(Debug)]
pub struct MailboxReceiver<C> {
    receiver: Receiver<C>,
    woken: Arc<AtomicBool>,
}

/// Creates a mailbox for the thread that sleeps in `poll`; its wakes carry `key`.
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
    /// Sends a message; returns it if the thread has ended.
    pub fn send(&self, message: C) -> Result<(), C> {
        self.sender.send(message).map_err(|back| back.0)?;
        // The message is queued before the flag is read, and the thread clears the flag before it
        // reads the queue: one of them sees the other.
        if !self.woken.swap(true, Ordering::SeqCst) {
            // It fails only when the thread has ended.
            let _ = self.waker.wake();
        }
        Ok(())
    }
}

impl<C> MailboxReceiver<C> {
    /// Clears the wake flag; to be called after each wake, before [`MailboxReceiver::next`].
    pub fn mark_awake(&self) {
        self.woken.store(false, Ordering::SeqCst);
    }

    /// The next message, if there is one.
    pub fn next(&self) -> Option<C> {
        self.receiver.try_recv().ok()
    }
}
