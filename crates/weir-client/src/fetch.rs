//! Bytes of other nodes: asked of the node's server, copied out of its pool as they arrive.

use core::sync::atomic::Ordering;

use rustix::io::Errno;
use weir_core::node::landing::LandingSlot;
use weir_core::proto::peer::LogRange;
use weir_core::proto::{Fetch, Landing, FETCH_PIECES};
use weir_store::slabmap::Window;

use crate::session::{sleep_on, Session};

impl Session {
    /// Brings bytes of other servers' logs and shows them; see [`crate::data::Host`].
    pub fn fetch(
        &self,
        reads: &[Vec<LogRange>],
        show: &mut dyn FnMut(usize, usize, Window),
    ) -> Result<(), Errno> {
        let pool = self.node().pool()?;
        let mut first = 0;
        while first < reads.len() {
            let asked = &reads[first..first + as_many_as_fit(&reads[first..])];
            let reads = asked.to_vec();
            let landings = self.call(Fetch { reads })?;
            if landings.is_empty() || landings.len() > asked.len() {
                return Err(Errno::IO);
            }
            let granted = landings.len();
            let mut outcome = Ok(());
            for (number, (landing, ranges)) in landings.into_iter().zip(asked).enumerate() {
                let slot = self.landings().get(usize::from(landing.slot));
                let slot = slot.ok_or(Errno::IO)?;
                // All are given back, whatever became of the first.
                if outcome.is_ok() {
                    let number = first + number;
                    outcome = self.arrive(pool, landing, slot, ranges, &mut |from, part| {
                        show(number, from, part);
                    });
                }
                slot.release();
            }
            outcome?;
            first += granted;
        }
        Ok(())
    }

    /// Shows the bytes of one read as they come.
    fn arrive(
        &self,
        pool: Window,
        landing: Landing,
        slot: &LandingSlot,
        ranges: &[LogRange],
        show: &mut dyn FnMut(usize, Window),
    ) -> Result<(), Errno> {
        let len: u64 = ranges.iter().map(|range| range.len).sum();
        let len = usize::try_from(len).map_err(|_| Errno::IO)?;
        let place = pool.part(landing.at as usize, len).ok_or(Errno::IO)?;
        let mut done = 0;
        while done < len {
            let arrived = slot.arrived().map_err(|_| Errno::IO)?;
            if arrived as usize > done {
                let part = place.part(done, arrived as usize - done).ok_or(Errno::IO)?;
                show(done, part);
                done = arrived as usize;
                continue;
            }
            slot.client_sleeps.store(1, Ordering::SeqCst);
            // It may have come since; who says so looks whether somebody sleeps.
            if slot.arrived() == Ok(arrived)
                && sleep_on(slot.word(), arrived) == Err(Errno::TIMEDOUT)
                && self.server_gone()
            {
                return Err(Errno::SHUTDOWN);
            }
        }
        Ok(())
    }
}

/// How many of the reads, at least one, have no more pieces than one request may.
fn as_many_as_fit(reads: &[Vec<LogRange>]) -> usize {
    let mut pieces = 0;
    let fit = reads.iter().take_while(|ranges| {
        pieces += ranges.len();
        pieces <= FETCH_PIECES
    });
    fit.count().max(1)
}
