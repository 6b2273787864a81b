//! Records of the memory that the processes of one node share.
//!
//! Three regions (files of a 0700 directory on tmpfs) hold them; `docs/FORMAT.md`
//! draws the bytes:
//!
//! | region | writers | contents |
//! | --- | --- | --- |
//! | `open` | server and clients; the last the server alone | [`region::Hub`], [`block::FileBlock`]s, [`cell::Cell`]s, [`ofd::Ofd`]s, [`known::KnownSlot`]s |
//! | `client-<id>` | one client and the server | [`region::ClientHeader`], [`ring::RecordSlot`]s, [`ring::Note`]s, the channel's bytes |
//! | `names` | the server alone | `crate::names` |
//!
//! Every field is an atomic, so a reader never has undefined behaviour, whatever another process
//! does; and no process believes an index or a length read from here before it has checked it.
//! Nothing here waits for another process: a process may be killed between any two instructions and
//! the others go on.

pub mod block;
pub mod cell;
pub mod channel;
pub mod claim;
#[cfg(test)]
pub(crate) mod format;
pub mod known;
pub mod landing;
pub mod ofd;
pub mod region;
pub mod ring;
pub mod tail;
