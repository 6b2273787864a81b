//! The time for which the service thread watches for the next request before it sleeps.
//!
//! A request to a server that watches on another processor takes less than a microsecond. A request
//! to a server that sleeps takes ten, because two threads are woken. But a thread that watches uses
//! a processor that programs could use. This costs most if they share the processor, for then they
//! cannot send requests meanwhile. So the thread watches for long only after some requests in a row
//! followed one another fast. Each time it watched for long in vain, it needs twice as many of them
//! first.

use std::time::Duration;

use weir_core::proto::ClientKind;

/// The long time, as a multiple of the short one.
const LONG: u32 = 10;
/// The same after requests of a kernel mount: the program, the kernel and the mount's process take
/// turns between two of them.
const LONG_FOR_MOUNT: u32 = 40;
/// The number of fast requests in a row before it watches for long.
const NEEDED: u32 = 4;
/// The highest such number after it watched in vain.
const MOST_NEEDED: u32 = 16;

/// Decides when to watch for long.
#[derive(Debug)]
pub struct Patience {
    short: Duration,
    /// The number of requests in a row that came within the long time.
    fast: u32,
    needed: u32,
    /// The sender of the last request.
    last: ClientKind,
}

impl Patience {
    /// A policy with the short time `short`; it never watches if that is 0.
    pub fn new(short: Duration) -> Patience {
        Patience {
            short,
            fast: 0,
            needed: NEEDED,
            last: ClientKind::Program,
        }
    }

    /// Notes that a request was served, and the kind of its sender. Another server counts as a
    /// program.
    pub fn served(&mut self, kind: ClientKind) {
        self.last = kind;
    }

    /// The time for which to watch now.
    pub fn limit(&self) -> Duration {
        if self.is_long() {
            self.long()
        } else {
            self.short
        }
    }

    /// Notes that a request came `waited` after the last work was done.
    pub fn asked_after(&mut self, waited: Duration) {
        if waited > self.long() {
            // The thread may have watched, and lost its processor meanwhile.
            self.watched_in_vain();
            self.fast = 0;
        } else if self.is_long() {
            // Watching for long was useful.
            self.needed = NEEDED;
        } else {
            self.fast += 1;
        }
    }

    /// Notes that the thread watched up to the limit and no request came.
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
            // Watching for the short time is not counted.
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
