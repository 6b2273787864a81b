//! The visibility of a file, as its attributes say it.

use weir_core::names::{Attr, Lamination, Visibility};

/// True if programs of all nodes see what is written to a file once the write returned.
pub(in crate::cluster) fn is_raw(attr: &Attr) -> bool {
    attr.policy.visibility == Visibility::ReadAfterWrite && attr.lamination != Lamination::Done
}
