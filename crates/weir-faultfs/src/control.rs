//! The side of a mount that tests see: rules, rate and latency, and the record of requests.

use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use rustix::io::Errno;

use crate::rule::{ActiveRule, FaultEffect, FaultRule, FsOperation, RecordedRequest, RuleId};

/// The state of a mount that its threads share with the test. It owns no descriptor.
#[derive(Debug, Default)]
pub(crate) struct FaultControl {
    state: Mutex<ControlState>,
    changed: Condvar,
}

#[derive(Debug, Default)]
struct ControlState {
    rules: Vec<ActiveRule>,
    next_rule: u64,
    requests: Vec<RecordedRequest>,
    /// Requests that were forgotten: the number of the first one that is there.
    forgotten: usize,
    /// Requests that hang.
    hanging: usize,
    latency: Duration,
    /// Bytes a second, of all writes together.
    write_rate: Option<u64>,
    layout: Option<Vec<u8>>,
    /// The time at which the next write may be done.
    write_due: Option<Instant>,
    /// The mount ends: nothing waits any more.
    is_ended: bool,
    /// The kernel sends no more requests.
    is_over: bool,
}

/// A request that was recorded, and what is to happen to it.
#[derive(Debug)]
pub(crate) struct Admission {
    number: usize,
    /// The rule that hits it, and its effect.
    fault: Option<(RuleId, FaultEffect)>,
    due: Instant,
}

impl Admission {
    /// The error of a request that is done all the same.
    pub(crate) fn lost_reply(&self) -> Option<Errno> {
        match self.fault {
            Some((_, FaultEffect::FailDone(errno))) => Some(errno),
            _ => None,
        }
    }
}

impl FaultControl {
    fn state(&self) -> MutexGuard<'_, ControlState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn wait<'s>(&self, state: MutexGuard<'s, ControlState>) -> MutexGuard<'s, ControlState> {
        let woken = self.changed.wait(state);
        woken.unwrap_or_else(PoisonError::into_inner)
    }

    /// Records a request. Rules count it in this order.
    pub(crate) fn admit(&self, request: RecordedRequest) -> Admission {
        let mut state = self.state();
        let now = Instant::now();
        let mut due = now + state.latency;
        if let (FsOperation::Write, Some(rate)) = (request.operation, state.write_rate) {
            let begin = state.write_due.map_or(now, |due| due.max(now));
            let nanoseconds = u128::from(request.bytes) * 1_000_000_000 / u128::from(rate);
            let end = begin + Duration::from_nanos(u64::try_from(nanoseconds).unwrap_or(u64::MAX));
            state.write_due = Some(end);
            due = due.max(end);
        }
        let mut fault = None;
        for rule in &mut state.rules {
            let effect = rule.meet(&request);
            fault = fault.or(effect.map(|effect| (rule.id, effect)));
        }
        if let Some((_, FaultEffect::Delay(delay))) = fault {
            due += delay;
        }
        state.requests.push(request);
        let number = state.forgotten + state.requests.len() - 1;
        self.changed.notify_all();
        Admission { number, fault, due }
    }

    /// Waits until a request may be done; an error: it is not.
    pub(crate) fn pass(&self, admission: &Admission) -> Result<(), Errno> {
        let mut state = self.state();
        loop {
            let left = admission.due.saturating_duration_since(Instant::now());
            if left.is_zero() || state.is_ended {
                break;
            }
            let woken = self.changed.wait_timeout(state, left);
            state = woken.unwrap_or_else(PoisonError::into_inner).0;
        }
        match admission.fault {
            Some((_, FaultEffect::Fail(errno))) => Err(errno),
            Some((id, FaultEffect::Hang)) => {
                state.hanging += 1;
                self.changed.notify_all();
                while state.rules.iter().any(|rule| rule.id == id) && !state.is_ended {
                    state = self.wait(state);
                }
                state.hanging -= 1;
                self.changed.notify_all();
                match state.is_ended {
                    true => Err(Errno::IO),
                    false => Ok(()),
                }
            }
            _ => Ok(()),
        }
    }

    /// Notes the reply to a request.
    pub(crate) fn note_reply(&self, admission: &Admission, reply: Result<(), Errno>) {
        let mut state = self.state();
        let index = admission.number.checked_sub(state.forgotten);
        if let Some(request) = index.and_then(|index| state.requests.get_mut(index)) {
            request.reply = Some(reply);
        }
        self.changed.notify_all();
    }

    pub(crate) fn add_rule(&self, rule: FaultRule) -> RuleId {
        let mut state = self.state();
        let id = RuleId(state.next_rule);
        state.next_rule += 1;
        state.rules.push(ActiveRule::new(id, rule));
        id
    }

    pub(crate) fn remove_rules(&self, is_removed: impl Fn(RuleId) -> bool) {
        self.state().rules.retain(|rule| !is_removed(rule.id));
        self.changed.notify_all();
    }

    pub(crate) fn set_latency(&self, latency: Duration) {
        self.state().latency = latency;
    }

    pub(crate) fn set_layout(&self, layout: Option<Vec<u8>>) {
        self.state().layout = layout;
    }

    /// The layout of all files.
    pub(crate) fn layout(&self) -> Option<Vec<u8>> {
        self.state().layout.clone()
    }

    pub(crate) fn set_write_rate(&self, rate: Option<u64>) {
        let mut state = self.state();
        state.write_rate = rate;
        state.write_due = None;
    }

    pub(crate) fn requests(&self) -> Vec<RecordedRequest> {
        self.state().requests.clone()
    }

    pub(crate) fn forget_requests(&self) {
        let mut state = self.state();
        state.forgotten += state.requests.len();
        state.requests.clear();
    }

    pub(crate) fn hanging(&self) -> usize {
        self.state().hanging
    }

    /// Waits until `is_so` of the requests, and of the number of those that hang; false: it is not so
    /// after this time.
    pub(crate) fn wait_until(
        &self,
        limit: Duration,
        is_so: impl Fn(&[RecordedRequest], usize) -> bool,
    ) -> bool {
        self.wait_for_state(limit, |state| is_so(&state.requests, state.hanging))
    }

    fn wait_for_state(&self, limit: Duration, is_so: impl Fn(&ControlState) -> bool) -> bool {
        let end = Instant::now() + limit;
        let mut state = self.state();
        loop {
            if is_so(&state) {
                return true;
            }
            let left = end.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return false;
            }
            let woken = self.changed.wait_timeout(state, left);
            state = woken.unwrap_or_else(PoisonError::into_inner).0;
        }
    }

    /// Lets all requests that wait go, and all that come pass without a fault.
    pub(crate) fn end_waiting(&self) {
        let mut state = self.state();
        state.is_ended = true;
        state.rules.clear();
        self.changed.notify_all();
    }

    /// Notes that the kernel sends no more requests.
    pub(crate) fn note_end(&self) {
        self.state().is_over = true;
        self.changed.notify_all();
    }

    /// Waits for that, at most so long.
    pub(crate) fn wait_for_end(&self, limit: Duration) {
        self.wait_for_state(limit, |state| state.is_over);
    }
}
