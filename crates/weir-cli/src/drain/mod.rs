//! Moving files out of an instance while the command of `weir run` works, by [`weir_mover::drain`].
//!
//! `weir run --drain-to` starts (`started`) a drain `process` beside the command: a call of the parallel file system that hangs can
//! hold up this process only. It makes `rounds` until it reads the letter `orders::FINISH` from its standard input, and
//! then moves the rest. `weir drain` (`command`) connects to a socket of the process in the run directory (`messages`,
//! `service`); `question` judges if files are safe. In an instance of several nodes, [movers](crate::movers) on the other
//! nodes share the files. `relief` evicts files of elevated directories when the instance has little room. `server_watch`
//! restarts the process when its server was started again. `end_time` is the end of the job. `hang_guard` sees that calls
//! hang; then another process goes on (`succession`) without the paths of these calls (`hung_calls`). `hook` is the user's program that receives the events of files. `analyzers` (`weir analyze`) analyse files before
//! they are moved; `last_analyses` waits for them at the end.

mod analyzers;
pub mod command;
pub mod end_time;
mod hang_guard;
mod hook;
mod hung_calls;
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
pub mod started;
mod succession;
