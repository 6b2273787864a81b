//! Counts of the published bytes of a server's log, for each MiB of a slab. The servers of their
//! slices know the positions of these bytes in files; this server must know that they are live.

use std::collections::BTreeMap;

use super::Item;

const UNIT_BYTES: u64 = 1 << 20;

/// Published bytes, by slab and MiB.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct PublishedBytes(BTreeMap<(u32, u32), u64>);

impl PublishedBytes {
    /// Adds bytes that are published.
    pub fn add(&mut self, slab: u32, pos: u64, len: u64) {
        each_unit(pos, len, |unit, bytes| {
            let count = self.0.entry((slab, unit)).or_default();
            *count = count.saturating_add(bytes).min(UNIT_BYTES);
        });
    }

    /// Removes bytes that no file refers to any more.
    pub fn remove(&mut self, slab: u32, pos: u64, len: u64) {
        each_unit(pos, len, |unit, bytes| {
            if let Some(count) = self.0.get_mut(&(slab, unit)) {
                *count = count.saturating_sub(bytes);
                if *count == 0 {
                    self.0.remove(&(slab, unit));
                }
            }
        });
    }

    /// Returns each count: slab, position of the MiB, bytes.
    pub fn iter(&self) -> impl Iterator<Item = (u32, u64, u64)> + '_ {
        let all = self.0.iter();
        all.map(|(&(slab, unit), &bytes)| (slab, u64::from(unit) * UNIT_BYTES, bytes))
    }

    /// Returns the counts as items.
    pub fn items(&self) -> impl Iterator<Item = Item<'static>> + '_ {
        let all = self.0.iter();
        all.map(|(&(slab, unit), &bytes)| Item::LogPublished { slab, unit, bytes })
    }
}

/// Visits the MiBs of a range of a slab. Bytes beyond the end of a slab are left out.
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
    fn published_and_freed_bytes_are_counted_by_the_mib() {
        let mut published = PublishedBytes::default();
        published.add(3, UNIT_BYTES - 10, 30);
        assert_eq!(
            published.iter().collect::<Vec<_>>(),
            [(3, 0, 10), (3, UNIT_BYTES, 20)]
        );
        published.remove(3, UNIT_BYTES - 10, 15);
        assert_eq!(published.iter().collect::<Vec<_>>(), [(3, UNIT_BYTES, 15)]);
        published.remove(3, 0, u64::MAX);
        published.add(9, u64::MAX, 5);
        assert_eq!(published, PublishedBytes::default());
    }
}
