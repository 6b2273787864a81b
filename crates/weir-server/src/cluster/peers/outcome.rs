//! Operations that are completed even if no client waits for them any more.

use std::cell::RefCell;
use std::future::Future;
use std::rc::Rc;

use futures_channel::oneshot;
use weir_core::proto::FsError;

use crate::cluster::peers::PeerServers;

/// The channel to the task that waits for an outcome, until it is told.
type Waiting = Rc<RefCell<Option<oneshot::Sender<Result<(), FsError>>>>>;

/// The receiver of the outcome of an operation that is completed even if no task waits for it any
/// more.
#[derive(Clone)]
pub(in crate::cluster) struct PendingOutcome {
    waiting: Waiting,
    /// Action taken when the outcome is not known in time.
    late: Rc<dyn Fn()>,
}

impl PendingOutcome {
    /// Tells the outcome, unless it was told before.
    fn tell(&self, how: Result<(), FsError>) {
        if let Some(waiting) = self.waiting.borrow_mut().take() {
            let _ = waiting.send(how);
        }
    }

    /// Tells the waiting task that the outcome is not known in time.
    pub(super) fn report_late(&self) {
        (self.late)();
        self.tell(Err(FsError::Unreachable));
    }

    /// Adds an action for the case that the outcome is not known in time.
    pub(in crate::cluster) fn late(&self, late: impl Fn() + 'static) -> PendingOutcome {
        PendingOutcome {
            waiting: Rc::clone(&self.waiting),
            late: Rc::new(late),
        }
    }
}

impl PeerServers {
    /// Runs an operation to its end in its own task; returns the first result that its
    /// [`PendingOutcome`] was told.
    pub(in crate::cluster) async fn to_the_end<F>(
        &self,
        act: impl FnOnce(PendingOutcome) -> F,
    ) -> Result<(), FsError>
    where
        F: Future<Output = Result<(), FsError>> + 'static,
    {
        let (sender, told) = oneshot::channel();
        let outcome = PendingOutcome {
            waiting: Rc::new(RefCell::new(Some(sender))),
            late: Rc::new(|| ()),
        };
        let acting = act(outcome.clone());
        let (this, deadline_ns) = (self.clone(), self.deadline());
        self.spawn(async move { outcome.tell(this.by(deadline_ns, acting).await) });
        told.await.unwrap_or(Err(FsError::Unreachable))
    }
}
