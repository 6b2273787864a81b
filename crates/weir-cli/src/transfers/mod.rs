//! The transfer service of a node: it moves files for programs that ask by `weir.h`.
//!
//! ```text
//! program, libweir --- request, reply ---> RUN_DIR/transfer.socket
//!                                            | bound by weir server (`starter`), which starts
//!                                            v
//!                                          weir transfer-process (`process`): threads that copy (`work`)
//! ```
//!
//! The process is started when somebody first asks, and again if it was killed; it ends with its server. It is a client of the
//! server, as movers are: a call of the parallel file system that hangs is none of the server's. A transfer outlives
//! the program that asked for it. The end of `weir run` waits for those of its node (`end`); an instance that is stopped ends
//! them: a part of a file is left then, which the next move to the same name removes.
//!
//! It also asks the drains of the node for programs (`drains`), so that libweir speaks to one process alone.
//!
//! Left out: transfers that a killed process had; their numbers are unknown to the next one.

mod drains;
mod end;
mod process;
mod starter;
mod work;

pub use end::finish_transfers;
pub use process::serve;
pub use starter::TransferStarter;
