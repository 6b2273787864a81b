//! The number of published bytes of a server's log, by MiB of a slab. The servers of their slices
//! know where these bytes are in files; this server must know that they are live.

use std::collections::BTreeMap;

use super::Item;

const UNIT_BYTES: u64 = 1 << 20;

/// Published bytes, by slab and MiB.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Given(BTreeMap<(u32, u32), u64>);

impl Given {
    /// Adds bytes that are published.
    pub fn add(&mut self, slab: u32, pos: u64, len: u64) {
        each_unit(pos, len, |unit, bytes| {
            let count = self.0.entry((slab, unit)).or_default();
            *count = count.saturating_add(bytes).min(UNIT_BYTES);
        });
    }

    /// Removes bytes that no file refers to any more.
    pub fn freed(&mut self, slab: u32, pos: u64, len: u64) {
        each_unit(pos, len, |unit, bytes| {
            if let Some(count) = self.0.get_mut(&(slab, unit)) {
                *count = count.saturating_sub(bytes);
                if *count == 0 {
                    self.0.remove(&(slab, unit));
                }
            }
        });
    }

    /// All of it: slab, position of the MiB, bytes.
    pub fn iter(&self) -> impl Iterator<Item = (u32, u64, u64)> + '_ {
        let all = self.0.iter();
        all.map(|(&(slab, unit), &bytes)| (slab, u64::from(unit) * UNIT_BYTES, bytes))
    }

    /// The same as items.
    pub fn items(&self) -> impl Iterator<Item = Item<'static>> + '_ {
        let all = self.0.iter();
        all.map(|(&(slab, unit), &bytes)| Item::Given { slab, unit, bytes })
    }
}

/// Cuts a range of a slab. Bytes beyond any slab are left out.
fn each_unit(pos: u64, len: u64, mut visit: impl FnMut(u32, u64)) {
    const SLAB_BYTES: u64 = 64 * UNIT_BYTES;
    let end = pos.saturating_add(len).min(SLAB_BYTES);
    let mut at = pos;
    while at < end {
        let unit = at / UNIT_BYTES;
        let next = ((unit + 1) * UNIT_BYTES).min(end);
        visit(u32::try_from(unit).unwrap_or(u32::MAX), next - at);
        at = next;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_published_and_freed_is_counted_by_the_mib() {
        let mut given = Given::default();
        given.add(3, UNIT_BYTES - 10, 30);
        assert_eq!(
            given.iter().collect::<Vec<_>>(),
            [(3, 0, 10), (3, UNIT_BYTES, 20)]
        );
        given.freed(3, UNIT_BYTES - 10, 15);
        assert_eq!(given.iter().collect::<Vec<_>>(), [(3, UNIT_BYTES, 15)]);
        given.freed(3, 0, u64::MAX);
        given.add(9, u64::MAX, 5);
        assert_eq!(given, Given::default());
    }
}
