//! Moves files between an instance and the parallel file system (PFS), in either direction.
//!
//! Invariants:
//! - a name on the target is that of a complete version: bytes are written into a *part*, a hidden file in the same
//!   directory (so that it gets the layout, the group and the ACL of that directory); the part is synced, checked and given
//!   its attributes, and then renamed ([`publish`]);
//! - the node that has the target's name is not touched before that, and not at all if somebody else changed it meanwhile;
//! - a move that was interrupted leaves at most a part, which the next move to the same name removes.
//!
//! | module | subject |
//! | --- | --- |
//! | [`tree`] | the calls that a mover makes on a source or a target: [`directory_tree`], [`instance_tree`] |
//! | [`watched`] | the calls of a tree that have not returned |
//! | [`copy`] | one file |
//! | [`mover`] | a process on another node that moves files: [`list`]s of them, and [`piece`]s of large ones |
//! | [`publish`], [`replaceable`] | names of the target, and the nodes there that may be replaced |
//! | [`mod@stage`] | trees of files, by several threads and nodes; `queue`: their tasks; [`progress`], [`summary`]: the result, [`json_path`]: its paths; [`stage::team`]: other nodes; [`stage::follow`]: sources that others fill |
//! | [`mod@transfer`] | single files, for programs that ask for them |
//! | [`mod@drain`] | a tree that programs write meanwhile, in rounds |
//! | [`filter`] | the choice of paths by patterns |
//! | [`sources`], [`manifest`] | the sources and targets of a move, from arguments or from a file |
//! | [`side`] | a tree with a path in it |
//! | [`unmoved`] | nodes of an elevated tree that its target does not have |
//!
//! Owners are not kept: a moved file belongs to the user who moves it, as with cp(1).
#![forbid(unsafe_code)]

pub mod content;
pub mod copy;
pub mod directory_tree;
pub mod drain;
pub mod error;
pub mod filter;
pub mod instance_tree;
pub mod json_path;
pub mod limit;
pub mod list;
pub mod manifest;
pub mod mover;
pub mod piece;
pub mod prepared;
pub mod progress;
pub mod publish;
mod queue;
pub mod replaceable;
pub mod side;
pub mod sources;
pub mod stage;
pub mod stripe;
pub mod summary;
pub mod transfer;
pub mod tree;
pub mod unmoved;
mod unreadable;
pub mod watched;

pub use content::ContentStamp;
pub use copy::LikenessBy;
pub use directory_tree::DirectoryTree;
pub use error::MoveError;
pub use filter::PathFilter;
pub use instance_tree::InstanceTree;
pub use limit::RateLimit;
pub use side::MoveSide;
pub use sources::StagePair;
pub use stage::follow::FollowedSources;
pub use stage::team::{FilePlacement, MoverNews, MoverSource, StageTeam};
pub use stage::{stage, stage_chosen, StageOptions, StageProgress};
pub use summary::{NodeShare, StageSummary};
pub use watched::{AvoidedPaths, CallUnderWay, CallWatch, SlowCall, WatchedTree};
