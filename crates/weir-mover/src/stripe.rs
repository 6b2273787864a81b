//! The stripes of files on a parallel file system (PFS): a write that crosses the boundary of two stripes
//! goes to two of its servers, and two writers of one stripe wait for each other's lock.
//!
//! Lustre gives the layout of a file in the extended attribute `lustre.lov` (`struct lov_user_md_v1` and `struct
//! lov_comp_md_v1` of its `lustre_user.h`; little-endian, like the machines that it runs on). GPFS gives its block size by
//! statfs(2). Other file systems are not asked.

use std::fs::File;

use serde::{Deserialize, Serialize};

/// The most bytes that are read and written at once.
pub const IO_BYTES: u64 = 4 << 20;
/// The smallest and the largest stripe that counts as plausible, bytes.
const BELIEVED: std::ops::RangeInclusive<u64> = 4 << 10..=4 << 30;

/// The attribute that has the layout of a file on Lustre.
const LUSTRE_LAYOUT: &str = "lustre.lov";
/// Layouts of one component, without and with a pool's name, and of several.
const LUSTRE_V1: u32 = 0x0BD1_0BD0;
const LUSTRE_V3: u32 = 0x0BD3_0BD0;
const LUSTRE_COMPOSITE: u32 = 0x0BD6_0BD0;
/// The offset of the stripe size in a layout.
const LUSTRE_STRIPE_AT: usize = 24;
/// The size of the head of a composite layout, and the offset of the number of components in it.
const COMPOSITE_HEAD: usize = 32;
const COMPOSITE_COUNT_AT: usize = 14;
/// The size of the entry for a component, and the offset in it of the position of the component's layout.
const COMPOSITE_ENTRY: usize = 48;
const COMPOSITE_ENTRY_LAYOUT_AT: usize = 24;
/// The largest value of an extended attribute that Linux knows.
const XATTR_BYTES: usize = 64 << 10;

/// The type of GPFS in statfs(2).
const GPFS_MAGIC: u64 = 0x4750_4653;

/// The size of a file's stripes.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct StripeSize(u64);

impl Default for StripeSize {
    /// The usual size: 4 MiB is also a multiple of smaller usual ones.
    fn default() -> StripeSize {
        StripeSize(IO_BYTES)
    }
}

impl StripeSize {
    /// A size in bytes; `None`: no file system has such stripes.
    pub fn new(bytes: u64) -> Option<StripeSize> {
        BELIEVED.contains(&bytes).then_some(StripeSize(bytes))
    }

    /// Asks the file system of an open file; `None`: it does not give a size.
    pub(crate) fn of_file(file: &File) -> Option<StripeSize> {
        let mut layout = vec![0; XATTR_BYTES];
        if let Ok(length) = rustix::fs::fgetxattr(file, LUSTRE_LAYOUT, &mut layout[..]) {
            return lustre_stripe(&layout[..length]).and_then(StripeSize::new);
        }
        let about = rustix::fs::fstatfs(file).ok()?;
        let is_gpfs = u64::try_from(about.f_type).is_ok_and(|kind| kind == GPFS_MAGIC);
        let block = u64::try_from(about.f_bsize).ok().filter(|_| is_gpfs);
        block.and_then(StripeSize::new)
    }

    /// The unit of ranges, bytes: as many whole stripes as fit into one write, or one stripe if that is larger.
    pub fn unit(self) -> u64 {
        match self.0 < IO_BYTES {
            true => IO_BYTES - IO_BYTES % self.0,
            false => self.0,
        }
    }

    /// The smallest number of bytes that is not less than this one, and is a multiple of the unit.
    pub fn round_up(self, bytes: u64) -> u64 {
        bytes
            .checked_next_multiple_of(self.unit())
            .unwrap_or(u64::MAX)
    }

    /// The end of a write that begins at this offset: a write does not cross the boundary of a unit.
    pub fn end_of_write(self, at: u64) -> u64 {
        let unit = self.unit();
        let within = at % unit;
        let end = (within - within % IO_BYTES).saturating_add(IO_BYTES);
        (at - within).saturating_add(end.min(unit))
    }
}

/// The largest stripe of a layout of Lustre, bytes. The stripe sizes of components are usually multiples of each other.
fn lustre_stripe(layout: &[u8]) -> Option<u64> {
    if number_at(layout, 0)? != LUSTRE_COMPOSITE {
        return component_stripe(layout);
    }
    let count = layout.get(COMPOSITE_COUNT_AT..COMPOSITE_COUNT_AT + 2)?;
    let count = usize::from(u16::from_le_bytes(count.try_into().ok()?));
    let components = (0..count).map_while(|entry| {
        let at = COMPOSITE_HEAD + entry * COMPOSITE_ENTRY + COMPOSITE_ENTRY_LAYOUT_AT;
        usize::try_from(number_at(layout, at)?).ok()
    });
    components
        .filter_map(|at| component_stripe(layout.get(at..)?))
        .max()
}

/// The stripe of a layout of one component.
fn component_stripe(layout: &[u8]) -> Option<u64> {
    match number_at(layout, 0)? {
        LUSTRE_V1 | LUSTRE_V3 => number_at(layout, LUSTRE_STRIPE_AT).map(u64::from),
        _ => None,
    }
}

fn number_at(bytes: &[u8], at: usize) -> Option<u32> {
    let number = bytes.get(at..at.checked_add(4)?)?;
    Some(u32::from_le_bytes(number.try_into().ok()?))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn component(magic: u32, stripe: u32) -> Vec<u8> {
        let mut layout = vec![0; 32];
        layout[..4].copy_from_slice(&magic.to_le_bytes());
        layout[LUSTRE_STRIPE_AT..LUSTRE_STRIPE_AT + 4].copy_from_slice(&stripe.to_le_bytes());
        layout
    }

    fn composite(components: &[Vec<u8>]) -> Vec<u8> {
        let mut layout = vec![0; COMPOSITE_HEAD + components.len() * COMPOSITE_ENTRY];
        layout[..4].copy_from_slice(&LUSTRE_COMPOSITE.to_le_bytes());
        layout[COMPOSITE_COUNT_AT] = u8::try_from(components.len()).unwrap();
        for (number, component) in components.iter().enumerate() {
            let entry = COMPOSITE_HEAD + number * COMPOSITE_ENTRY + COMPOSITE_ENTRY_LAYOUT_AT;
            let at = u32::try_from(layout.len()).unwrap();
            layout[entry..entry + 4].copy_from_slice(&at.to_le_bytes());
            layout.extend_from_slice(component);
        }
        layout
    }

    #[test]
    fn layouts_of_lustre_say_their_stripe() {
        assert_eq!(lustre_stripe(&component(LUSTRE_V1, 1 << 20)), Some(1 << 20));
        assert_eq!(
            lustre_stripe(&component(LUSTRE_V3, 16 << 20)),
            Some(16 << 20)
        );
        let small = component(LUSTRE_V1, 1 << 20);
        let large = component(LUSTRE_V3, 8 << 20);
        assert_eq!(lustre_stripe(&composite(&[small, large])), Some(8 << 20));
        assert_eq!(lustre_stripe(&composite(&[])), None);
        assert_eq!(lustre_stripe(b""), None);
        assert_eq!(StripeSize::new(0), None);
    }

    proptest! {
        #[test]
        fn any_layout_is_read_or_refused(bytes in proptest::collection::vec(any::<u8>(), 0..200)) {
            let mut layout = composite(&[component(LUSTRE_V1, 1 << 20)]);
            for (at, byte) in bytes.iter().enumerate() {
                let at = (usize::from(*byte) * 7 + at) % layout.len();
                layout[at] = *byte;
                let _ = lustre_stripe(&layout);
            }
            let _ = lustre_stripe(&bytes);
        }

        #[test]
        fn writes_end_at_the_boundaries_of_stripes(stripe in 1_u64..40, at in 0_u64..1 << 40) {
            let size = StripeSize::new(stripe << 19).unwrap();
            let end = size.end_of_write(at);
            prop_assert!(at < end && end - at <= IO_BYTES);
            // Of large stripes a part, and otherwise whole ones, but for what comes before the first.
            if size.0 > IO_BYTES {
                prop_assert!(at / size.0 == (end - 1) / size.0);
            } else {
                prop_assert_eq!(end % size.unit(), 0);
                prop_assert_eq!(end % size.0 , 0);
            }
            prop_assert_eq!(size.round_up(at) % size.0, 0);
        }
    }
}
