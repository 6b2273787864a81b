//! The commands of other threads to the I/O thread: those of the handles in [`crate::tcp`], and of the
//! lanes in [`crate::bulk`], which need connections.

use weir_core::types::Rank;

use crate::{CallId, Message, Token};

/// A command to the I/O thread.
#[derive(Debug)]
pub enum IoCommand {
    /// Call another server.
    Call {
        /// The server.
        to: Rank,
        /// The call's id.
        id: CallId,
        /// The call.
        message: Message,
        /// See [`crate::Fabric::call_without_deadline`].
        unbounded: bool,
    },
    /// Reply to another server.
    Reply {
        /// The call.
        token: Token,
        /// The reply.
        message: Message,
    },
    /// Connect to a server for a lane of the bulk plane.
    Dial(Rank, usize),
    /// End the thread.
    End,
}
