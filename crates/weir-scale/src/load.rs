//! Sums over servers.

use serde::Serialize;

/// How much of something servers have: of all, on average, and the one with the most.
#[derive(Clone, Copy, PartialEq, Debug, Default, Serialize)]
pub struct Load {
    /// The sum over all servers.
    pub total: u64,
    /// The mean of the servers.
    pub mean: f64,
    /// The part of the busiest server.
    pub most: u64,
}

impl Load {
    /// Adds up the parts of all servers.
    pub fn sum(parts: &[u64]) -> Load {
        let total = parts.iter().sum();
        Load {
            total,
            mean: real(total) / real(parts.len().max(1) as u64),
            most: parts.iter().copied().max().unwrap_or(0),
        }
    }
}

/// A count as a number to divide; exact up to 2^53.
#[allow(clippy::cast_precision_loss)] // counts here are far below 2^53
pub fn real(count: u64) -> f64 {
    count as f64
}
