//! The types of this room: each has a subject, and all may use the parts of the server in [`FilesNeeds`].

use weir_core::proto::FsError;
use weir_core::types::Ino;

use crate::cluster::files::{FilesNeeds, FilesState};
use crate::cluster::keyed::Guard;

/// Declares a part of this room: a type over a server with [`FilesNeeds`]. A part that is not `stateless` uses the
/// state of the room.
macro_rules! part {
    ($(#[$doc:meta])* $name:ident, stateless) => {
        $(#[$doc])*
        #[derive(Clone)]
        pub(in crate::cluster) struct $name<S> {
            pub(in crate::cluster::files) server: S,
        }

        impl<S: FilesNeeds> $name<S> {
            fn new(server: &S) -> $name<S> {
                $name {
                    server: server.clone(),
                }
            }
        }
    };
    ($(#[$doc:meta])* $name:ident) => {
        part!($(#[$doc])* $name, stateless);

        impl<S: FilesNeeds> $name<S> {
            pub(in crate::cluster::files) fn state(&self) -> &FilesState {
                self.server.files_state()
            }
        }
    };
}

part!(
    /// Files of other servers that are known here, and this server's files that others hold.
    StandInFiles
);
part!(
    /// Truncation of files that several servers know.
    Truncation
);
part!(
    /// Visibility and lamination.
    FileSharing
);
part!(
    /// The order of writes of several nodes: write tokens.
    FileTokens
);
part!(
    /// The positions of appends of several nodes.
    SharedAppends
);
part!(
    /// Reads that came too early.
    ReadAudit
);
part!(
    /// Files that no program needs any more.
    FileEnds
);
part!(
    /// Files whose bytes are only on the parallel file system, all or some.
    Eviction, stateless
);
part!(
    /// Extended attributes.
    ExtendedAttributes, stateless
);

/// The parts of this room, for a server with [`FilesNeeds`].
pub(in crate::cluster) trait FileParts: FilesNeeds {
    /// Waits, for a limited time, until no other change of a file of this server is under way; none begins while the
    /// guard lives. A restarted server first hears which servers hold its files.
    async fn hold_for_change(&self, ino: Ino) -> Result<Guard<'_, Ino>, FsError> {
        self.announced().await;
        let changing = &self.files_state().changing;
        self.peers().hold_in_time(changing, ino).await
    }

    /// See [`StandInFiles`].
    fn stand_ins(&self) -> StandInFiles<Self> {
        StandInFiles::new(self)
    }

    /// See [`Truncation`].
    fn truncation(&self) -> Truncation<Self> {
        Truncation::new(self)
    }

    /// See [`FileSharing`].
    fn sharing(&self) -> FileSharing<Self> {
        FileSharing::new(self)
    }

    /// See [`FileTokens`].
    fn tokens(&self) -> FileTokens<Self> {
        FileTokens::new(self)
    }

    /// See [`SharedAppends`].
    fn appends(&self) -> SharedAppends<Self> {
        SharedAppends::new(self)
    }

    /// See [`ReadAudit`].
    fn audits(&self) -> ReadAudit<Self> {
        ReadAudit::new(self)
    }

    /// See [`FileEnds`].
    fn ends(&self) -> FileEnds<Self> {
        FileEnds::new(self)
    }

    /// See [`Eviction`].
    fn eviction(&self) -> Eviction<Self> {
        Eviction::new(self)
    }

    /// See [`ExtendedAttributes`].
    fn xattrs(&self) -> ExtendedAttributes<Self> {
        ExtendedAttributes::new(self)
    }
}

impl<S: FilesNeeds> FileParts for S {}
