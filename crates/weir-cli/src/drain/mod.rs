//! Moving files out of an instance while the command of `weir run` works, by [`weir_mover::drain`].
//!
//! `weir run --drain-to` starts a `process` of its own beside the command, which a call of the parallel
//! file system can hold up without holding up anybody else. It makes `rounds` until it reads the letter
//! `orders::FINISH` from its standard input, and then moves the rest. `weir drain` (`command`)
//! asks it by a socket in the run directory (`messages`, `service`), and `question` judges the answer. Of an instance of several nodes,
//! [movers](crate::movers) on the others share the files. `relief` has files of elevated directories evicted when the instance
//! has little room. `server_watch` has the process begin anew if its server was started again. `end_time` is when the job ends, `hang_guard` ends a drain that hangs. `hook` is the user's
//! program that hears what becomes of files.
//! `analyzers` (`weir analyze`) see files before they are moved, and `last_analyses` has the end wait for them.

mod analyzers;
pub mod command;
pub mod end_time;
mod hang_guard;
mod hook;
mod last_analyses;
pub mod messages;
mod orders;
pub mod process;
pub mod process_args;
mod question;
mod relief;
mod rounds;
mod server_watch;
mod service;
