//! Telling all nodes the same, as the server's `cluster/tell.rs` does: recalls, truncations,
//! unlinks; and a lamination, which is several such one behind the other.
//!
//! Driven by the real tree ([`weir_core::placement::tree`]). Each message costs its sender what a
//! reply costs, one behind the other; the node that hears passes on at once, and answers when all
//! below it have.

use serde::Serialize;
use weir_core::placement::tree::{shares, FAN_OUT};

use crate::Costs;

/// What a lamination tells those that have the file open before it is done: to let nobody
/// write, to publish, that it is laminated, and to believe no more what they knew.
const LAMINATION: f64 = 4.0;
/// The extents of a laminated file of as many runs as are passed to all, bytes.
const EXTENTS_BYTES: f64 = 40_000.0;

/// How long telling all nodes takes, and the messages of the node that tells.
#[derive(Clone, Copy, PartialEq, Debug, Serialize)]
pub struct Telling {
    /// Recalling a file that all nodes believe in, down the tree, s.
    pub recall_s: f64,
    /// The same, if its home told each itself, s.
    pub recall_each_s: f64,
    /// Laminating a file that all nodes have open, s.
    pub laminate_s: f64,
    /// Passing its extents to all nodes after that, s.
    pub extents_s: f64,
    /// Messages that the home sends for one recall.
    pub messages: u64,
}

impl Telling {
    /// With so many nodes.
    pub fn of(nodes: u16, costs: &Costs) -> Telling {
        let others: Vec<u16> = (1..nodes).collect();
        let each = u32::from(nodes).max(1);
        let extents_ns = EXTENTS_BYTES / costs.link_bytes_per_s * 1e9;
        Telling {
            recall_s: tell_ns(&others, FAN_OUT, 0.0, costs) / 1e9,
            recall_each_s: tell_ns(&others, each, 0.0, costs) / 1e9,
            laminate_s: LAMINATION * tell_ns(&others, FAN_OUT, 0.0, costs) / 1e9,
            extents_s: tell_ns(&others, FAN_OUT, extents_ns, costs) / 1e9,
            messages: shares(&others, FAN_OUT).count() as u64,
        }
    }
}

/// From the first message until the last reply is in.
fn tell_ns(ranks: &[u16], fan_out: u32, message_ns: f64, costs: &Costs) -> f64 {
    let mut sent_ns = 0.0;
    let mut replies: Vec<f64> = Vec::new();
    for share in shares(ranks, fan_out) {
        sent_ns += costs.reply_ns + message_ns;
        let heard = sent_ns + costs.latency_ns + costs.request_ns;
        let below = tell_ns(&share[1..], fan_out, message_ns, costs);
        replies.push(heard + below + costs.latency_ns);
    }
    // They are taken one by one.
    replies.sort_by(f64::total_cmp);
    let taken = |done: f64, reply: &f64| done.max(*reply) + costs.reply_ns;
    replies.iter().fold(0.0, taken)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn time_grows_with_the_logarithm_and_the_home_sends_few() {
        let costs = Costs::default();
        let of = |nodes| Telling::of(nodes, &costs);
        assert!(of(1).recall_s <= 0.0);
        assert!((of(9).recall_s - of(9).recall_each_s).abs() < 1e-12);
        let (small, large) = (of(100), of(10_000));
        assert!(large.recall_s < 2.5 * small.recall_s, "{small:?} {large:?}");
        assert!(large.recall_each_s > 50.0 * large.recall_s);
        assert_eq!(large.messages, u64::from(FAN_OUT));
    }

    #[test]
    fn the_fan_out_is_a_good_one() {
        let costs = Costs::default();
        let others: Vec<u16> = (1..4000).collect();
        let time = |fan_out| tell_ns(&others, fan_out, 0.0, &costs);
        let best = (2..64).map(time).fold(f64::INFINITY, f64::min);
        assert!(time(FAN_OUT) < 1.3 * best, "{} {best}", time(FAN_OUT));
    }
}
