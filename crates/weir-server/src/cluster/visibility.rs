//! The visibility of a file according to its attributes.

use weir_core::names::{Attr, Lamination, Visibility};

/// True if programs of all nodes see a write to a file once it has returned.
pub(in crate::cluster) fn is_raw(attr: &Attr) -> bool {
    attr.policy.visibility == Visibility::ReadAfterWrite && attr.lamination != Lamination::Done
}
