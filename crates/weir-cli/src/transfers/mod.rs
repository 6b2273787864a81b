//! The transfer service of a node: it moves files for programs that ask by `weir.h`.
//!
//! ```text
//! program, libweir --- request, reply ---> RUN_DIR/transfer.socket
//!                                            | bound by weir server (`starter`), which starts
//!                                            v
//!                                          weir transfer-process (`process`): threads that copy (`work`)
//! ```
//!
//! The process is started at the first request, and again if it was killed; it ends with its server. It is a client of the
//! server, as movers are, so that a hanging call of the parallel file system does not hold up the server. A transfer
//! outlives the program that asked for it. The end of `weir run` waits for those of its node (`end`); stopping an instance
//! ends them. This may leave a part of a file, which the next move to the same name removes.
//!
//! It also asks the drains of the node for programs (`drains`), so that libweir speaks to one process alone.
//!
//! Left out: transfers of a process that was killed; the next process does not know their numbers.

mod drains;
mod end;
mod process;
mod starter;
mod work;

pub use end::finish_transfers;
pub use process::serve;
pub use starter::TransferStarter;
