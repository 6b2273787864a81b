//! Bytes of other nodes: requested from the node's server, copied from its pool as they arrive.

use core::ops::Range;
use core::sync::atomic::Ordering;

use rustix::io::Errno;
use weir_core::proto::peer::LogRange;
use weir_core::proto::{Fetch, Landing, FETCH_PIECES};
use weir_core::types::Ino;
use weir_store::slabmap::ReadWindow;

use super::{now_ns, sleep_on, Session};
use crate::data::Host;
use crate::operation;

impl Session {
    /// Requests bytes of other servers' logs; see [`crate::data::Host`]. A request `ahead` waits
    /// for no other thread, because its caller may have room that others wait for.
    pub fn ask(
        &self,
        ino: Ino,
        reads: &[Vec<LogRange>],
        ahead: bool,
    ) -> Result<Vec<Landing>, Errno> {
        let reads = reads[..as_many_as_fit(reads)].to_vec();
        let most = reads.len();
        let fetch = Fetch { ino, reads, ahead };
        let landings = match ahead {
            true => self.call_at_once(fetch).unwrap_or(Ok(Vec::new()))?,
            false => self.call(fetch)?,
        };
        let fit = landings.len() <= most;
        fit.then_some(landings).ok_or(Errno::IO)
    }

    /// Shows the bytes that have arrived of a part of one read; see [`crate::data::Host`].
    pub fn arrive(
        &self,
        landing: Landing,
        part: Range<usize>,
        wait: bool,
        show: &mut dyn FnMut(usize, ReadWindow),
    ) -> Result<usize, Errno> {
        let slot = Host::slot(self, landing).ok_or(Errno::IO)?;
        let begin_ns = now_ns();
        loop {
            let arrived = slot.arrived().map_err(|_| Errno::IO)?;
            let upto = part.end.min(arrived as usize);
            if upto > part.start {
                let pool = self.node().pool()?;
                let place = pool.part(landing.at as usize, part.end).ok_or(Errno::IO)?;
                let came = place.part(part.start, upto - part.start);
                show(part.start, came.ok_or(Errno::IO)?);
                return Ok(upto);
            }
            if !wait || part.is_empty() {
                return Ok(part.start);
            }
            slot.client_sleeps.store(1, Ordering::SeqCst);
            // More may have arrived since; a thread that announces it checks for sleepers.
            if slot.arrived() == Ok(arrived)
                && sleep_on(slot.word(), arrived) == Err(Errno::TIMEDOUT)
            {
                if self.server_gone() {
                    return Err(Errno::SHUTDOWN);
                }
                // Its server would notice that too, but counts from the time of the request.
                let waited_ns = now_ns().saturating_sub(begin_ns);
                if self.is_over(operation::spent_ns().saturating_add(waited_ns)) {
                    return Err(Errno::IO);
                }
            }
        }
    }
}

impl Session {
    /// True if a call that has waited so long for servers is to end.
    fn is_over(&self, waited_ns: u64) -> bool {
        let most_ms = self.hub().deadline_ms.load(Ordering::Relaxed);
        most_ms != 0 && waited_ns / 1_000_000 > u64::from(most_ms)
    }
}

/// The number of reads, at least one, that together have no more pieces than one request may.
fn as_many_as_fit(reads: &[Vec<LogRange>]) -> usize {
    let mut pieces = 0;
    let fit = reads.iter().take_while(|ranges| {
        pieces += ranges.len();
        pieces <= FETCH_PIECES
    });
    fit.count().max(1).min(reads.len())
}
