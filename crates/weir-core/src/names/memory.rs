//! Tables in ordinary memory, for tests.

use super::{layout, InodeRecord, NamesHeader, Tables};
use crate::types::Rank;
use std::sync::atomic::{AtomicU32, AtomicU64};

/// The tables that `weir-store` maps from a file, made of vectors.
pub(crate) struct Memory {
    pub(crate) header: Box<NamesHeader>,
    pub(crate) inodes: Vec<InodeRecord>,
    pub(crate) arena: Vec<AtomicU64>,
    pub(crate) buckets: Vec<AtomicU32>,
}

fn zeroed<T: Default>(len: usize) -> Vec<T> {
    std::iter::repeat_with(T::default).take(len).collect()
}

impl Memory {
    pub(crate) fn new(max_inodes: u32) -> Self {
        let l = layout(max_inodes);
        Memory {
            header: Box::default(),
            inodes: zeroed(l.inodes.len),
            arena: zeroed(l.arena.len),
            buckets: zeroed(l.buckets.len),
        }
    }

    pub(crate) fn format(&self, rank: Rank) -> Tables<'_> {
        Tables::format(&self.header, &self.inodes, &self.arena, &self.buckets, rank)
            .expect("the sizes are the layout's")
    }
}
