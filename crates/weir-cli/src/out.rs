//! Printing what was asked for.
//!
//! The reader may have seen enough (`weir status | head`): then the program ends without a word,
//! with the code of one that SIGPIPE ended. SIGPIPE itself stays ignored, for sockets' sake.

use std::fmt::Arguments;
use std::io::{ErrorKind, Write};

use weir_instance::errln;

/// The exit code that a shell gives to a program that SIGPIPE (13) ended.
const PIPE_CLOSED: i32 = 128 + 13;

/// As [`print!`].
macro_rules! out {
    ($($what:tt)*) => { $crate::out::write(format_args!($($what)*)) };
}

/// As [`println!`].
macro_rules! outln {
    ($($what:tt)*) => { $crate::out::write(format_args!("{}\n", format_args!($($what)*))) };
}

/// Writes to standard output. If that cannot be, the program ends.
pub fn write(text: Arguments<'_>) {
    let mut out = std::io::stdout().lock();
    let Err(e) = out.write_fmt(text).and_then(|()| out.flush()) else {
        return;
    };
    if e.kind() == ErrorKind::BrokenPipe {
        std::process::exit(PIPE_CLOSED);
    }
    errln!("weir: standard output: {e}");
    std::process::exit(1);
}
