//! `SplitMix64` (Steele, Lea and Flood, OOPSLA 2014): a mixer of 64 bits, and the generator made of it.
//!
//! Written here, so that places and seeds stay what they are whatever becomes of a library. Not for secrets.
//! `weir-bench` depends on no crate of weir, and has its own.

/// The generator's state grows by this at each number.
pub const STEP: u64 = 0x9E37_79B9_7F4A_7C15;

/// Mixes the bits of a word: the number that the generator gives in this state.
pub fn mix(state: u64) -> u64 {
    let mut x = state.wrapping_add(STEP);
    x = (x ^ (x >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    x = (x ^ (x >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
    x ^ (x >> 31)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_those_of_the_paper() {
        assert_eq!(mix(0), 0xE220_A839_7B1D_CDAF);
        assert_eq!(mix(STEP), 0x6E78_9E6A_A1B9_65F4);
    }
}
