//! Stages and drains to a file system of the kernel that is slow, full, read-only, gone or hung
//! (`weir-faultfs`). Skipped, with a message, where the machine allows no mount.
//!
//! | file | subject |
//! | --- | --- |
//! | `scene` | a source and a target, and what must hold of the target at any time |
//! | `errors` | each error in each step of a stage and of a drain |
//! | `random` | stages and rounds under faults that are drawn |
//! | `slow` | rate, sizes and order of requests, requests that hang |

mod errors;
mod random;
mod scene;
mod slow;
