//! How long the service thread watches for the next request before it sleeps.
//!
//! A request to a server that watches on another processor takes less than a microsecond, one to a server that
//! sleeps takes ten: two threads are woken. But who watches uses a processor that programs could use, all the more if
//! they share it and cannot ask meanwhile. So the thread watches for long only while requests follow
//! one another fast: after some in a row that did. Each time that it watched for long in vain it wants to
//! see twice as many first.

use std::time::Duration;

use weir_core::proto::ClientKind;

/// For how many times the short time it may watch.
const LONG: u32 = 10;
/// The same after requests of a kernel mount: the program, the kernel and the mount's process take turns
/// between two of them.
const LONG_FOR_MOUNT: u32 = 40;
/// After how many fast requests in a row it does.
const NEEDED: u32 = 4;
/// The most that it wants to see after it watched in vain.
const MOST_NEEDED: u32 = 16;

/// When to watch for long.
#[derive(Debug)]
pub struct Patience {
    short: Duration,
    /// Requests that came in a row, each within the long time.
    fast: u32,
    needed: u32,
    /// The sender of the last request.
    last: ClientKind,
}

impl Patience {
    /// That watches for so long at least; never, if that is 0.
    pub fn new(short: Duration) -> Patience {
        Patience {
            short,
            fast: 0,
            needed: NEEDED,
            last: ClientKind::Program,
        }
    }

    /// A request was served: of a kernel mount, or of a program or another server.
    pub fn served(&mut self, kind: ClientKind) {
        self.last = kind;
    }

    /// For how long to watch now.
    pub fn limit(&self) -> Duration {
        if self.is_long() {
            self.long()
        } else {
            self.short
        }
    }

    /// Something was asked for, so long after all was done that had been.
    pub fn asked_after(&mut self, waited: Duration) {
        if waited > self.long() {
            // It may have watched, and lost its processor meanwhile.
            self.watched_in_vain();
            self.fast = 0;
        } else if self.is_long() {
            // It paid.
            self.needed = NEEDED;
        } else {
            self.fast += 1;
        }
    }

    /// It watched up to the limit, and nothing was asked for.
    pub fn watched_in_vain(&mut self) {
        if self.is_long() {
            self.fast = 0;
            self.needed = (self.needed * 2).min(MOST_NEEDED);
        }
    }

    fn is_long(&self) -> bool {
        self.fast >= self.needed
    }

    fn long(&self) -> Duration {
        self.short
            * match self.last {
                ClientKind::Mount => LONG_FOR_MOUNT,
                ClientKind::Program => LONG,
            }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SHORT: Duration = Duration::from_micros(5);
    const FAST: Duration = Duration::from_micros(20);
    const SLOW: Duration = Duration::from_micros(200);

    fn fast(patience: &mut Patience, requests: u32) -> Duration {
        (0..requests).for_each(|_| patience.asked_after(FAST));
        patience.limit()
    }

    #[test]
    fn it_watches_for_long_while_requests_follow_fast() {
        let mut patience = Patience::new(SHORT);
        assert_eq!(fast(&mut patience, NEEDED - 1), SHORT);
        assert_eq!(fast(&mut patience, 1), SHORT * LONG);
        assert_eq!(fast(&mut patience, 1000), SHORT * LONG);
        patience.asked_after(SLOW);
        assert_eq!(patience.limit(), SHORT);
        assert_eq!(fast(&mut patience, NEEDED), SHORT, "it lost its processor");
    }

    #[test]
    fn what_was_in_vain_makes_it_careful_and_what_paid_bold_again() {
        let mut patience = Patience::new(SHORT);
        for times in 1..3 {
            fast(&mut patience, NEEDED << (times - 1));
            assert_eq!(patience.limit(), SHORT * LONG);
            patience.watched_in_vain();
            assert_eq!(patience.limit(), SHORT);
            // Watching for the short time says nothing.
            patience.watched_in_vain();
            assert_eq!(fast(&mut patience, (NEEDED << times) - 1), SHORT);
            patience.asked_after(SLOW);
        }
        assert_eq!(fast(&mut patience, MOST_NEEDED), SHORT * LONG);
        patience.watched_in_vain();
        assert_eq!(fast(&mut patience, MOST_NEEDED), SHORT * LONG, "no more");
        patience.asked_after(FAST);
        patience.watched_in_vain();
        assert_eq!(fast(&mut patience, NEEDED * 2), SHORT * LONG);
    }

    #[test]
    fn a_mount_is_given_longer() {
        let mut patience = Patience::new(SHORT);
        patience.served(ClientKind::Mount);
        (0..NEEDED).for_each(|_| patience.asked_after(SHORT * LONG * 2));
        assert_eq!(patience.limit(), SHORT * LONG_FOR_MOUNT);
        patience.served(ClientKind::Program);
        assert_eq!(patience.limit(), SHORT * LONG);
        patience.asked_after(SHORT * LONG * 2);
        assert_eq!(patience.limit(), SHORT);
    }

    #[test]
    fn none_at_all_stays_none() {
        let mut patience = Patience::new(Duration::ZERO);
        patience.asked_after(FAST);
        assert_eq!(patience.limit(), Duration::ZERO);
    }
}
