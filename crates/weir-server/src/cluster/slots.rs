//! Slots of a table in shared memory, of which some are lent.

/// Slots of which some are lent. A slot that was freed is lent again before a new one, so that little of a sparse
/// region is touched.
#[derive(Debug)]
pub struct Slots<T> {
    used: Vec<Option<T>>,
    free: Vec<u32>,
    limit: usize,
    /// The most slots that there can be.
    most: usize,
}

impl<T> Slots<T> {
    /// At most `most` slots, all free. None of them may be used before [`Slots::allow`].
    pub fn new(most: usize) -> Slots<T> {
        Slots {
            used: Vec::new(),
            free: Vec::new(),
            limit: 0,
            most,
        }
    }

    /// Allows this many slots to be used from now on.
    pub fn allow(&mut self, slots: usize) {
        self.limit = slots.min(self.most);
    }

    /// The number of slots that must be allowed to use one more; `None`: one is free, or there
    /// cannot be more.
    pub fn wants(&self) -> Option<usize> {
        (!self.has_room() && self.limit < self.most).then(|| self.used.len() + 1)
    }

    /// Returns true if a slot is free.
    pub fn has_room(&self) -> bool {
        !self.free.is_empty() || self.used.len() < self.limit
    }

    /// Uses a free slot.
    pub fn insert(&mut self, value: T) -> Option<u32> {
        if let Some(index) = self.free.pop() {
            self.used[index as usize] = Some(value);
            return Some(index);
        }
        if self.used.len() >= self.limit {
            return None;
        }
        self.used.push(Some(value));
        u32::try_from(self.used.len() - 1).ok()
    }

    /// Uses a given slot, which is free.
    pub fn put(&mut self, index: u32, value: T) {
        let at = index as usize;
        for free in self.used.len()..at {
            self.free.extend(u32::try_from(free));
        }
        if self.used.len() <= at {
            self.used.resize_with(at + 1, || None);
        }
        self.free.retain(|free| *free != index);
        self.used[at] = Some(value);
    }

    /// Frees a slot.
    pub fn remove(&mut self, index: u32) -> Option<T> {
        let value = self.used.get_mut(index as usize)?.take()?;
        self.free.push(index);
        Some(value)
    }

    /// The value in a slot.
    pub fn get(&self, index: u32) -> Option<&T> {
        self.used.get(index as usize)?.as_ref()
    }

    /// The value in a slot, mutable.
    pub fn get_mut(&mut self, index: u32) -> Option<&mut T> {
        self.used.get_mut(index as usize)?.as_mut()
    }

    /// All used slots, in order.
    pub fn iter(&self) -> impl Iterator<Item = (u32, &T)> {
        self.used
            .iter()
            .enumerate()
            .filter_map(|(index, value)| Some((u32::try_from(index).ok()?, value.as_ref()?)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slots_are_used_again_and_their_number_is_bounded() {
        let mut slots = Slots::new(2);
        assert_eq!((slots.wants(), slots.insert('a')), (Some(1), None));
        slots.allow(1);
        assert_eq!((slots.insert('a'), slots.wants()), (Some(0), Some(2)));
        slots.allow(usize::MAX);
        assert_eq!((slots.remove(0), slots.wants()), (Some('a'), None));
        assert_eq!(
            (slots.insert('a'), slots.insert('b'), slots.insert('c')),
            (Some(0), Some(1), None)
        );
        assert!(!slots.has_room());
        assert_eq!(slots.remove(0), Some('a'));
        assert_eq!(slots.remove(0), None);
        assert_eq!(slots.insert('d'), Some(0));
        assert_eq!(slots.iter().collect::<Vec<_>>(), [(0, &'d'), (1, &'b')]);
    }
}
