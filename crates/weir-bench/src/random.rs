//! Random bytes, for tokens and secrets of one run.

use anyhow::{anyhow, Result};

/// Random bytes of the kernel.
pub fn random<const N: usize>() -> Result<[u8; N]> {
    let mut bytes = [0; N];
    getrandom::fill(&mut bytes).map_err(|e| anyhow!("getrandom: {e}"))?;
    Ok(bytes)
}
